// torchamp-doctor: prints what torchamp finds on this machine, what is missing, and how to fix
// it. Exit status: 0 if all is well, 1 if something works, but not optimally, 2 if broken.
#include <torchamp/build_info.h>
#include <torchamp/detail/doctor.h>

#include <algorithm>
#include <iostream>

namespace {

const char kUsage[] =
    "usage: torchamp-doctor [--help | --version]\n\n"
    "Reports what torchamp finds on this machine, what is missing, and how to fix it.\n"
    "Exit status: 0 if all is well, 1 if something works, but not optimally, 2 if broken.\n";

int report() {
  const char* const words[] = {"    ok", "  note", "BROKEN"};
  int worst = 0;
  for (const torchamp::Finding& finding : torchamp::examine()) {
    std::cout << words[finding.status] << "  " << finding.subject << ": " << finding.found << '\n';
    if (!finding.remedy.empty()) std::cout << "        -> " << finding.remedy << '\n';
    worst = std::max(worst, finding.status);
  }
  return worst;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 1) return report();
  const std::string option = arguments[1];
  if (option == "--version") {
    std::cout << "torchamp " << torchamp::build_info().version << '\n';
  } else if (option == "--help" || option == "-h") {
    std::cout << kUsage;
  } else {
    std::cerr << "torchamp-doctor: expected --help, --version or nothing, got " << option << '\n';
    return 2;
  }
  return 0;
}
