// torchamp-doctor: prints what torchamp finds on this machine, what is missing, and how to fix
// it.
#include <algorithm>
#include <iostream>
#include <string>

#include "doctor/doctor.h"

namespace {

const char kUsage[] =
    "usage: torchamp-doctor [--help]\n\n"
    "Reports what torchamp finds on this machine, what is missing, and how to fix it.\n"
    "Exit status: 0 if all is well, 1 if something works but could work better, 2 if broken.\n";

// The words for each status.
const char* const kWords[] = {"    ok", "  note", "BROKEN"};

int report() {
  int worst = 0;
  for (const torchamp::Diagnostic& finding : torchamp::examine()) {
    std::cout << kWords[finding.status] << "  " << finding.subject << ": " << finding.found << '\n';
    if (!finding.remedy.empty()) std::cout << "        -> " << finding.remedy << '\n';
    worst = std::max(worst, finding.status);
  }
  return worst;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 1) return report();
  const std::string option = arguments[1];
  if (option == "--help" || option == "-h") {
    std::cout << kUsage;
    return 0;
  }
  std::cerr << "torchamp-doctor: expected --help or nothing, got " << option << '\n';
  return 2;
}
