// torchamp-doctor: prints what torchamp finds on this machine, what is missing, and how to fix
// it.
#include <torchamp/build_info.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "doctor/doctor.h"

namespace {

using Diagnostics = std::vector<torchamp::Diagnostic>;

const char kUsage[] =
    "usage: torchamp-doctor [--help | --json | --version]\n\n"
    "Reports what torchamp finds on this machine, what is missing, and how to fix it.\n"
    "Exit status: 0 if all is well, 1 if something works but could work better, 2 if broken.\n";

// The words for each status.
const char* const kPrintedWords[] = {"    ok", "  note", "BROKEN"};
const char* const kJsonWords[] = {"ok", "note", "broken"};

int worst(const Diagnostics& findings) {
  int status = 0;
  for (const auto& finding : findings) status = std::max(status, finding.status);
  return status;
}

void print(const Diagnostics& findings) {
  for (const auto& finding : findings) {
    std::cout << kPrintedWords[finding.status] << "  " << finding.subject << ": " << finding.found
              << '\n';
    if (!finding.remedy.empty()) std::cout << "        -> " << finding.remedy << '\n';
  }
}

/// As a string of JSON.
std::string quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char byte : text) {
    if (static_cast<unsigned char>(byte) < 0x20) {
      char escaped[7];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      quoted += escaped;
      continue;
    }
    if (byte == '"' || byte == '\\') quoted += '\\';
    quoted += byte;
  }
  return quoted + '"';
}

/// In the form that `python -m torchamp doctor --json` has.
void print_json(const Diagnostics& findings) {
  std::cout << "{\n  \"status\": " << quoted(kJsonWords[worst(findings)]) << ",\n  \"findings\": [";
  const char* separator = "\n";
  for (const auto& finding : findings) {
    std::cout << separator << "    {\n      \"subject\": " << quoted(finding.subject)
              << ",\n      \"found\": " << quoted(finding.found)
              << ",\n      \"status\": " << quoted(kJsonWords[finding.status])
              << ",\n      \"remedy\": " << quoted(finding.remedy) << "\n    }";
    separator = ",\n";
  }
  std::cout << "\n  ]\n}\n";
}

int report(void (*print_findings)(const Diagnostics&)) {
  const Diagnostics findings = torchamp::examine();
  print_findings(findings);
  return worst(findings);
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 1) return report(print);
  const std::string option = arguments[1];
  if (option == "--json") return report(print_json);
  if (option == "--version") {
    std::cout << "torchamp " << torchamp::build_info().version << '\n';
  } else if (option == "--help" || option == "-h") {
    std::cout << kUsage;
  } else {
    std::cerr << "torchamp-doctor: expected --help, --json, --version or nothing, got " << option
              << '\n';
    return 2;
  }
  return 0;
}
