"""What apex has, as far as programs import, call, subclass and read it: names, signatures, bases
and instance attributes. apex.optimizers is in tables of its own."""

#: By module: functions.
FUNCTIONS = {
    "apex.amp": [
        "initialize(models, optimizers=None, enabled=True, opt_level='O1', cast_model_type=None, "
        "patch_torch_functions=None, keep_batchnorm_fp32=None, master_weights=None, "
        "loss_scale=None, cast_model_outputs=None, num_losses=1, verbosity=1, "
        "min_loss_scale=None, max_loss_scale=2.0**24)",
        "scale_loss(loss, optimizers, loss_id=0, model=None, delay_unscale=False, "
        "delay_overflow_check=False)",
        "disable_casts()",
        "master_params(optimizer)",
        "state_dict(destination=None)",
        "load_state_dict(state_dict)",
        "init(enabled=True, loss_scale='dynamic', enable_caching=True, verbose=False, "
        "allow_banned=False)",
        "half_function(fn)",
        "float_function(fn)",
        "promote_function(fn)",
        "register_half_function(module, name)",
        "register_float_function(module, name)",
        "register_promote_function(module, name)",
    ],
    "apex.amp._amp_state": ["master_params(optimizer)"],
    "apex.amp._initialize": ["to_type(dtype, t)", "applier(value, fn)"],
    "apex.amp.frontend": ["state_dict(destination=None)", "load_state_dict(state_dict)"],
    "apex.amp.handle": [
        "scale_loss(loss, optimizers, loss_id=0, model=None, delay_unscale=False, "
        "delay_overflow_check=False)",
        "disable_casts()",
    ],
    "apex.amp.rnn_compat": ["has_old_rnns()"],
    "apex.fp16_utils": [
        "BN_convert_float(module)",
        "network_to_half(network)",
        "prep_param_lists(model, flat_master=False)",
        "model_grads_to_master_grads(model_params, master_params, flat_master=False)",
        "master_params_to_model_params(model_params, master_params, flat_master=False)",
        "to_python_float(t)",
        "convert_module(module, dtype)",
        "convert_network(network, dtype)",
    ],
    "apex.normalization.fused_layer_norm": [
        "fused_layer_norm(input, normalized_shape, eps=1e-6, memory_efficient=False)",
        "fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, "
        "memory_efficient=False)",
        "fused_rms_norm(input, normalized_shape, eps=1e-6, memory_efficient=False)",
        "fused_rms_norm_affine(input, weight, normalized_shape, eps=1e-6, memory_efficient=False)",
    ],
    "apex.parallel": [
        "convert_syncbn_model(module, process_group=None, channel_last=False)",
        "create_syncbn_process_group(group_size)",
    ],
    "apex.parallel.distributed": ["flat_dist_call(tensors, call, extra_args=None)"],
}

_NORM = "normalized_shape eps elementwise_affine memory_efficient weight reset_parameters"
_SCALER = "loss_scale update_scale backward scale_gradient has_overflow cur_scale"

#: By class: a base class, the signature of its constructor, and attributes of its instances.
CLASSES = {
    "apex.amp.handle.AmpHandle": (
        "builtins.object",
        None,
        "is_active _is_active _deactivate _clear_cache",
    ),
    "apex.fp16_utils.FP16Model": ("torch.nn.Module", "(network)", "network forward"),
    "apex.fp16_utils.tofp16": ("torch.nn.Module", None, "forward"),
    "apex.fp16_utils.LossScaler": ("builtins.object", "(scale=1)", _SCALER),
    "apex.fp16_utils.DynamicLossScaler": (
        "builtins.object",
        "(init_scale=2**32, scale_factor=2.0, scale_window=1000)",
        f"{_SCALER} cur_iter last_overflow_iter scale_factor scale_window",
    ),
    "apex.fp16_utils.FP16_Optimizer": (
        "builtins.object",
        "(init_optimizer, static_loss_scale=1.0, dynamic_loss_scale=False, "
        "dynamic_loss_args=None, verbose=True)",
        "zero_grad step backward update_master_grads clip_master_grads "
        "state_dict load_state_dict loss_scale state param_groups optimizer overflow loss_scaler "
        "fp16_groups fp32_from_fp16_groups fp32_from_fp32_groups",
    ),
    "apex.multi_tensor_apply.MultiTensorApply": (
        "builtins.object",
        "(chunk_size)",
        "available chunk_size __call__",
    ),
    "apex.normalization.FusedLayerNorm": (
        "torch.nn.Module",
        "(normalized_shape, eps=1e-5, elementwise_affine=True, memory_efficient=False)",
        f"{_NORM} bias forward extra_repr",
    ),
    "apex.normalization.FusedRMSNorm": (
        "torch.nn.Module",
        "(normalized_shape, eps=1e-5, elementwise_affine=True, memory_efficient=False)",
        f"{_NORM} forward extra_repr",
    ),
    "apex.parallel.DistributedDataParallel": (
        "torch.nn.Module",
        "(module, message_size=10000000, delay_allreduce=False, shared_param=None, "
        "allreduce_trigger_params=None, retain_allreduce_buffers=False, "
        "allreduce_always_fp32=False, num_allreduce_streams=1, allreduce_communicators=None, "
        "gradient_average=True, gradient_predivide_factor=1.0, "
        "gradient_average_split_factor=None, prof=False)",
        "module forward disable_allreduce enable_allreduce",
    ),
    "apex.parallel.SyncBatchNorm": (
        "torch.nn.modules.batchnorm._BatchNorm",
        "(num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, "
        "process_group=None, channel_last=False, fuse_relu=False)",
        "process_group num_features eps momentum affine weight bias "
        "running_mean running_var track_running_stats forward",
    ),
    "apex.parallel.LARC.LARC": (
        "builtins.object",
        "(optimizer, trust_coefficient=0.02, clip=True, eps=1e-8)",
        "optim trust_coefficient eps clip state param_groups state_dict load_state_dict zero_grad "
        "add_param_group step",
    ),
}

#: By module: other names.
NAMES = {
    "apex": "amp fp16_utils multi_tensor_apply normalization optimizers parallel",
    "apex.amp": "_amp_state amp frontend handle lists rnn_compat scaler",
    "apex.amp.__version__": "VERSION __version__",
    "apex.amp._amp_state": "AmpState _amp_state",
    "apex.amp._process_optimizer": "AmpOptimizerState",
    "apex.amp.frontend": "initialize opt_levels",
    "apex.amp.lists": "functional_overrides tensor_overrides torch_overrides",
    "apex.amp.lists.functional_overrides": "MODULE FP16_FUNCS FP32_FUNCS BANNED_FUNCS",
    "apex.amp.lists.tensor_overrides": "MODULE FP16_FUNCS FP32_FUNCS CASTS",
    "apex.amp.lists.torch_overrides": "MODULE FP16_FUNCS FP32_FUNCS CASTS SEQUENCE_CASTS",
    "apex.amp.rnn_compat": "RNN_NAMES",
    "apex.fp16_utils": "clip_grad_norm",
    "apex.multi_tensor_apply": "multi_tensor_applier",
    "apex.parallel": "ReduceOp LARC distributed",
    "apex.parallel.distributed": "flatten unflatten",
}

#: Of an optimizer after initialize, and of its stash.
OPTIMIZER = (
    "_amp_stash _lazy_init_maybe_master_weights _amp_lazy_init _prepare_amp_backward "
    "_post_amp_backward _master_params_to_model_params"
)
STASH = (
    "lazy_init_called already_patched params_have_scaled_gradients fp16_groups "
    "fp32_from_fp16_groups fp32_from_fp32_groups all_fp16_params all_fp32_from_fp16_params "
    "all_fp32_from_fp32_params all_fp32_params"
)

#: What torchamp has otherwise, with the reason.
OTHERWISE = {
    "apex.amp.initialize": "opt_level None is that of set_global_policy, by default O1",
    "apex.amp.scale_loss": "delay_unscale None delays where DistributedDataParallel does not sync",
    "apex.amp.handle.scale_loss": "as apex.amp.scale_loss",
}
