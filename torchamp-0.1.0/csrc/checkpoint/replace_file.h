#pragma once

#include <torchamp/detail/export.h>

#include <functional>
#include <string>

namespace torchamp::checkpoint {

/// Calls `write` with the path of a new file, "<path>.tmp-<process>", and renames it to `path` once
/// it is on disk: at every moment, `path` is the old file or the new one. Keeps the permissions of
/// the old file. Links are followed, and what is not a regular file is written directly. Throws if
/// `path` cannot be written, and deletes the new file if anything throws.
TORCHAMP_API void replace_file(const std::string& path,
                               const std::function<void(const std::string&)>& write);

}  // namespace torchamp::checkpoint
