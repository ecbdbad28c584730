// Forward diffusion from points to noise, and the reverse process.
#pragma once

#include <torch/types.h>

constexpr int64_t kNoiseSteps = 40;

/// Noise is added in kNoiseSteps steps, step t with variance betas[t].
class Diffusion {
 public:
  explicit Diffusion(torch::Device device)
      : betas_(torch::linspace(1e-3, 0.2, kNoiseSteps).to(device)),
        kept_((1 - betas_).cumprod(0)) {}

  /// `points` after step `t`, int64 [n], of the forward process with this `noise`.
  torch::Tensor add_noise(const torch::Tensor& points, const torch::Tensor& noise,
                          const torch::Tensor& t) const {
    const torch::Tensor kept = kept_.index({t}).unsqueeze(1);
    return kept.sqrt() * points + (1 - kept).sqrt() * noise;
  }

  /// The denoiser's time input for `t`: [n, 1].
  static torch::Tensor progress(const torch::Tensor& t) {
    return t.to(torch::kFloat).div(kNoiseSteps - 1).unsqueeze(1);
  }

  /// `count` points that `denoiser` generates from noise.
  template <class D>
  torch::Tensor sample(D& denoiser, int64_t count) const {
    torch::NoGradGuard no_grad;
    torch::Tensor points = torch::randn({count, 2}, betas_.options());
    for (int64_t t = kNoiseSteps - 1; t >= 0; --t) {
      const torch::Tensor times = torch::full({count}, t, betas_.options().dtype(torch::kLong));
      const torch::Tensor noise = denoiser->forward(points, progress(times));
      const torch::Tensor beta = betas_[t];
      points = (points - beta / (1 - kept_[t]).sqrt() * noise) / (1 - beta).sqrt();
      if (t > 0) points += step_deviation(t) * torch::randn_like(points);
    }
    return points;
  }

 private:
  /// Standard deviation of a point before step t, given the point after it and the noise.
  torch::Tensor step_deviation(int64_t t) const {
    return (betas_[t] * (1 - kept_[t - 1]) / (1 - kept_[t])).sqrt();
  }

  torch::Tensor betas_;
  torch::Tensor kept_;
};
