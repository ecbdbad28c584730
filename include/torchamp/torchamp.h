// All of torchamp, in the order of the stages. <torchamp/amp.h> adds the short namespace.
#pragma once

#include <torchamp/build_info.h>
// 1 choose
#include <torchamp/opt_level.h>
// 2 cast
#include <torchamp/autocast.h>
#include <torchamp/cast.h>
#include <torchamp/functions.h>
// 3 keep masters
// 4 scale, 5 unscale and check, 6 update
#include <torchamp/grad_scaler.h>
#include <torchamp/loss_scaler.h>
#include <torchamp/ops.h>
#include <torchamp/scale_loss.h>
// 7 step
#include <torchamp/clip.h>
#include <torchamp/optim/adam.h>
#include <torchamp/optim/lamb.h>
#include <torchamp/optim/novograd.h>
#include <torchamp/optim/sgd.h>
#include <torchamp/optimizer.h>
#include <torchamp/overflow_trace.h>
#include <torchamp/telemetry.h>
// all of it
#include <torchamp/averaged_model.h>
#include <torchamp/float32_params.h>
#include <torchamp/inference.h>
#include <torchamp/initialize.h>
#include <torchamp/logging.h>
#include <torchamp/model.h>
#include <torchamp/preflight.h>
#include <torchamp/serialize.h>
