#include "cuda/library.h"

#include <dlfcn.h>
#include <link.h>

namespace torchamp::cuda {
namespace {

struct Search {
  std::string prefix;
  std::string found;
};

int visit_library(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  const std::string path = info->dlpi_name;
  const std::string name = path.substr(path.rfind('/') + 1);
  if (name.compare(0, search.prefix.size(), search.prefix) != 0) return 0;
  search.found = path;
  return 1;
}

}  // namespace

Library::Library(const std::string& path)
    : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) throw std::runtime_error(dlerror());
}

void* Library::symbol(const char* name) const {
  return dlsym(handle_, name);
}

std::string loaded_library(const std::string& prefix) {
  Search search{prefix, ""};
  dl_iterate_phdr(visit_library, &search);
  return search.found;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace torchamp::cuda
