// Removes a folder of a test.
#pragma once

#include <ftw.h>

#include <cstdio>
#include <filesystem>

namespace torchamp {

/// Like std::filesystem::remove_all, whose place libtorch takes in torch 2.11 with CUDA, and
/// crashes.
inline void remove_folder(const std::filesystem::path& folder) {
  const auto remove = [](const char* path, const struct stat*, int, FTW*) {
    return std::remove(path);
  };
  nftw(folder.c_str(), remove, 8, FTW_DEPTH | FTW_PHYS);
}

}  // namespace torchamp
