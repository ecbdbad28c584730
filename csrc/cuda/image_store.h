// Compiled kernels, cached on disk across processes.
#pragma once

#include <string>
#include <utility>

namespace torchamp::cuda {

/// A folder of images, each with its key, what it was compiled from. It is used only if the
/// user owns it and no other user can access it; damaged images are ignored. Nothing here throws: a
/// kernel that is not cached is compiled again.
class ImageStore {
 public:
  /// The folder is created with the first image. An empty path disables the store.
  explicit ImageStore(std::string folder) : folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }
  /// Why the folder is not used; empty if it is, or can be once it exists.
  std::string refusal() const;

  /// Empty if there is none.
  std::string find(const std::string& key) const;
  void keep(const std::string& key, const std::string& image) const;

 private:
  std::string path_of(const std::string& key) const;

  std::string folder_;
};

/// TORCHAMP_CACHE, where "off" turns the store off; else torchamp in XDG_CACHE_HOME, or in .cache
/// at home. Empty if none is set.
std::string image_folder();

/// The store in image_folder(), which is determined at the first call.
const ImageStore& image_store();

}  // namespace torchamp::cuda
