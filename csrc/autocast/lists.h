// Which ops O1 and O4 cast, and by which rule.
#pragma once

#include <array>

namespace torchamp::autocast_lists {

/// Run in the autocast's 16-bit type.
constexpr std::array kLowPrecision{
    "conv1d",
    "conv1d.padding",
    "conv2d",
    "conv2d.padding",
    "conv3d",
    "conv3d.padding",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_tbc",
    "conv_transpose3d.input",
    "linear",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "mm",
    "mv",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "einsum",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
};

/// Like kLowPrecision on the CPU. On CUDA torch casts the weights inside these ops, in one piece,
/// as cuDNN requires, but to float16 alone.
constexpr std::array kRecurrent{
    "lstm.input",     "lstm.data",     "gru.input",      "gru.data",
    "rnn_tanh.input", "rnn_tanh.data", "rnn_relu.input", "rnn_relu.data",
};

/// Run in float32.
constexpr std::array kFloat32{
    // torch's
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "logsumexp",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Tensor",
    "pow.Tensor_Scalar",
    "pow.Scalar",
    "cumprod",
    "cumsum",
    "dist",
    "pdist",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "prod",
    "prod.dim_int",
    "std",
    "std.dim",
    "std.correction",
    "sum",
    "sum.dim_IntList",
    "var",
    "var.dim",
    "var.correction",
    "renorm",
    // used by torch.norm
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    // torch.nn.functional's
    "grid_sampler",
    "softplus",
    "softmax.int",
    "log_softmax.int",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "cross_entropy_loss",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "multi_margin_loss",
    "nll_loss",
    "nll_loss2d",
    "binary_cross_entropy_with_logits",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "ctc_loss.IntList",
    "ctc_loss.Tensor",
    // used by torch.nn.functional.interpolate
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    // used by torch.nn.functional.local_response_norm
    "avg_pool3d",
};

/// Run in float32 if one of the tensors, including 0-dim ones, is float32.
constexpr std::array kWidest{
    "addcdiv",    "addcmul",     "atan2",      "cross",      "bilinear",        "dot",
    "vdot",       "equal",       "add.Tensor", "sub.Tensor", "mul.Tensor",      "div.Tensor",
    "eq.Tensor",  "ne.Tensor",   "ge.Tensor",  "gt.Tensor",  "div.Tensor_mode", "le.Tensor",
    "lt.Tensor",  "rsub.Tensor", "tensordot",  "index_add",  "index_copy",      "index_put",
    "scatter_add"};

/// In place: run in the type of the tensor that is written.
constexpr std::array kTypeOfSelf{
    "addmm_",   "addmv_", "addr_",      "addbmm_",     "baddbmm_",   "addcdiv_",
    "addcmul_", "atan2_", "index_add_", "index_copy_", "index_put_", "scatter_add_",
};

/// In place, and rejected for 16-bit tensors, which cannot store the float32 result.
constexpr std::array kFloat32InPlace{
    "acos_", "asin_",       "cosh_",  "erfinv_", "exp_", "expm1_",   "log_",    "log10_",
    "log2_", "reciprocal_", "rsqrt_", "sinh_",   "tan_", "cumprod_", "cumsum_", "renorm_",
};

}  // namespace torchamp::autocast_lists
