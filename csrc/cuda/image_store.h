// Compiled kernels, kept on disk from process to process.
#pragma once

#include <string>
#include <utility>

namespace torchamp::cuda {

/// A folder of images, each under the key of what it was compiled from. It is used only if it is
/// the user's own and closed to others; images that are not as they were written are not found.
/// Nothing here throws: what is not kept is compiled again.
class ImageStore {
 public:
  /// The folder is made when the first image is kept. An empty path keeps nothing.
  explicit ImageStore(std::string folder) : folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }
  /// Why the folder is not used; empty if it is, or may be once it is there.
  std::string refusal() const;

  /// Empty where there is none.
  std::string find(const std::string& key) const;
  void keep(const std::string& key, const std::string& image) const;

 private:
  std::string path_of(const std::string& key) const { return folder_ + "/" + key; }

  std::string folder_;
};

/// TORCHAMP_CACHE, where "off" turns the store off; else torchamp in XDG_CACHE_HOME, or in .cache
/// at home. Empty where there is none of these.
std::string image_folder();

/// The store in image_folder(), which is asked at the first call.
const ImageStore& image_store();

}  // namespace torchamp::cuda
