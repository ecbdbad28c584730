#include "cuda/images.h"

#include <stdexcept>
#include <unordered_map>

#include "cuda/embedded.h"
#include "cuda/image_store.h"
#include "cuda/launch_table.h"
#include "cuda/nvrtc.h"

namespace torchamp::cuda {
namespace {

std::string target_of(int capability, const Nvrtc& nvrtc) {
  const std::string target = target_for(capability, nvrtc.architectures());
  if (!target.empty()) return target;
  throw std::runtime_error("NVRTC " + nvrtc.version() + " does not support compute capability " +
                           std::to_string(capability / 10) + "." + std::to_string(capability % 10));
}

std::string text_of(const Program& program) {
  std::string text;
  for (const std::string& option : program.options) text += option + '\n';
  for (const EmbeddedFile& file : program.sources)
    text += std::string(file.name) + '\n' + file.text;
  return text;
}

/// Looked up without opening NVRTC, which would dominate the time if the image is cached.
std::string key_of(const Program& program, int capability) {
  return nvrtc_identity() + '\n' + std::to_string(capability) + '\n' + text_of(program);
}

std::string find_or_compile(const std::string& key, const Program& program, int capability) {
  std::string image = image_store().find(key);
  if (!image.empty()) return image;
  const Nvrtc& nvrtc = Nvrtc::instance();
  image = nvrtc.compile(program, target_of(capability, nvrtc));
  image_store().keep(key, image);
  return image;
}

const std::string& image_of_program(const Program& program, int capability) {
  static auto& images = *new std::unordered_map<std::string, std::string>;
  const std::string key = key_of(program, capability);
  const auto known = images.find(key);
  if (known != images.end()) return known->second;
  return images[key] = find_or_compile(key, program, capability);
}

Program program_of(Kernel kernel) {
  Program program{embedded_sources(), nvrtc_options()};
  program.options.push_back("-DTORCHAMP_ONLY=" + definition(kernel));
  return program;
}

std::string trial_text() {
  return "struct Parameter { char bytes[" + std::to_string(kParameterBytes) +
         "]; };\n"
         "extern \"C\" __global__ void torchamp_trial(const Parameter __grid_constant__) {}\n";
}

}  // namespace

const std::string& image_of(Kernel kernel, int capability) {
  return image_of_program(program_of(kernel), capability);
}

const std::string& trial_image(int capability) {
  static const auto& text = *new std::string(trial_text());
  return image_of_program({{{"trial.cu", text.c_str()}}, nvrtc_options()}, capability);
}

}  // namespace torchamp::cuda
