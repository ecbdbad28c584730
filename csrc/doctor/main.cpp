// torchamp-doctor: prints what torchamp finds on this machine, what is missing, and what to do
// about it. Ends with status 0 when all is well, 1 when something works less well than it could, 2
// when broken.
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
