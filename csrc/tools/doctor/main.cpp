// torchamp-doctor: prints what torchamp finds on this machine, what is missing, and how to fix
// it.
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "doctor/doctor.h"

namespace {

const char kUsage[] =
    "usage: torchamp-doctor [--help]\n\n"
    "Reports what torchamp finds on this machine, what is missing, and how to fix it.\n"
    "Exit status: 0 if all is well, 1 if something works but could work better, 2 if broken.\n";

// The words for each status.
const char* const kWords[] = {"    ok", "  note", "BROKEN"};

/// What the report ends with.
std::string verdict_of(const std::vector<torchamp::Diagnostic>& findings, int worst) {
  constexpr const char* kVerdicts[] = {"ready", "ready, and could work better: ", "not ready: "};
  std::string verdict = kVerdicts[worst];
  bool is_first = true;
  for (const torchamp::Diagnostic& finding : findings) {
    if (finding.status == 0 || finding.status != worst) continue;
    verdict += (is_first ? "" : ", ") + finding.subject;
    is_first = false;
  }
  return verdict;
}

int report() {
  const std::vector<torchamp::Diagnostic> findings = torchamp::examine();
  int worst = 0;
  for (const torchamp::Diagnostic& finding : findings) {
    std::cout << kWords[finding.status] << "  " << finding.subject << ": " << finding.found << '\n';
    if (!finding.remedy.empty()) std::cout << "        -> " << finding.remedy << '\n';
    worst = std::max(worst, finding.status);
  }
  std::cout << "torchamp is " << verdict_of(findings, worst) << '\n';
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
