// torchamp-doctor: prints what torchamp finds on this machine, what is missing, and how to fix
// it. Exit status: 0 if all is well, 1 if something works, but not optimally, 2 if broken.
#include <torchamp/detail/doctor.h>

#include <algorithm>
#include <iostream>

int main() {
  const char* const words[] = {"    ok", "  note", "BROKEN"};
  int worst = 0;
  for (const torchamp::Finding& finding : torchamp::examine()) {
    std::cout << words[finding.status] << "  " << finding.subject << ": " << finding.found << '\n';
    if (!finding.remedy.empty()) std::cout << "        -> " << finding.remedy << '\n';
    worst = std::max(worst, finding.status);
  }
  return worst;
}
