#include <torchamp/telemetry.h>

#include "device.h"
#include "training.h"

namespace torchamp {
namespace {

class TelemetryTest : public DeviceTest {};

TEST_P(TelemetryTest, CountsWhatCameBeforeTheFirstCall) {
  Training training(device(), Options("O2").verbosity(0));
  for (int step = 0; step < 3; ++step) training.step();
  training.scaler().loss_scale();  // waits for the device
  EXPECT_EQ(telemetry(training.optimizer()).steps, 3);
}

TORCHAMP_ON_EACH_DEVICE(TelemetryTest);

}  // namespace
}  // namespace torchamp
