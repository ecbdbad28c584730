# Finds torch by path, never by importing it, and without TorchConfig.cmake, which demands a CUDA
# toolkit as soon as torch was built with CUDA. Used by the build and by the installed package.
#
# torchamp_find_torch() defines the imported target torchamp::torch and sets, in the caller's scope:
#   TORCHAMP_TORCH_ROOT_FOUND   the folder that holds torch's include/ and lib/
#   TORCHAMP_TORCH_VERSION      "2.13.0+cpu"
#   TORCHAMP_TORCH_MINOR        "2.13"
#   TORCHAMP_TORCH_CXX11_ABI    0 or 1
#   TORCHAMP_TORCH_HAS_CUDA     TRUE when torch was built with CUDA
#   TORCHAMP_TORCH_OPENMP       torch's own OpenMP library, or empty
#
# Order: TORCHAMP_TORCH_ROOT (a LibTorch folder or a site-packages/torch), a Torch package that was
# found already, CMAKE_PREFIX_PATH, the torch of Python3_EXECUTABLE or of python3.

set(_TORCHAMP_PROBE "${CMAKE_CURRENT_LIST_DIR}/probe_torch.py")
set(TORCHAMP_TORCH_ROOT "" CACHE PATH "A LibTorch folder or a site-packages/torch to build against")

function(_torchamp_is_torch_root dir out)
  if(EXISTS "${dir}/lib/libtorch_cpu.so" AND EXISTS "${dir}/include/ATen/core/Tensor.h")
    set(${out} TRUE PARENT_SCOPE)
  else()
    set(${out} FALSE PARENT_SCOPE)
  endif()
endfunction()

function(_torchamp_torch_from_prefixes out)
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    foreach(candidate "${prefix}" "${prefix}/../.." "${prefix}/torch")
      _torchamp_is_torch_root("${candidate}" found)
      if(found)
        get_filename_component(root "${candidate}" ABSOLUTE)
        set(${out} "${root}" PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

function(_torchamp_torch_from_python out)
  set(${out} "" PARENT_SCOPE)
  set(python "${Python3_EXECUTABLE}")
  if(NOT python)
    find_program(TORCHAMP_PROBE_PYTHON NAMES python3 python)
    mark_as_advanced(TORCHAMP_PROBE_PYTHON)
    set(python "${TORCHAMP_PROBE_PYTHON}")
  endif()
  if(python)
    execute_process(COMMAND "${python}" "${_TORCHAMP_PROBE}" OUTPUT_VARIABLE root
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set(${out} "${root}" PARENT_SCOPE)
  endif()
endfunction()

function(_torchamp_locate_torch out)
  if(TORCHAMP_TORCH_ROOT)
    set(root "${TORCHAMP_TORCH_ROOT}")
  elseif(TARGET torch AND TORCH_INSTALL_PREFIX)
    set(root "${TORCH_INSTALL_PREFIX}")
  else()
    _torchamp_torch_from_prefixes(root)
    if(NOT root)
      _torchamp_torch_from_python(root)
    endif()
  endif()
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

function(_torchamp_read_version root out)
  set(version "")
  if(EXISTS "${root}/version.py")
    file(STRINGS "${root}/version.py" line REGEX "^__version__" LIMIT_COUNT 1)
    string(REGEX REPLACE "^__version__[^'\"]*['\"]([^'\"]+)['\"].*$" "\\1" version "${line}")
  elseif(EXISTS "${root}/build-version")
    file(STRINGS "${root}/build-version" version LIMIT_COUNT 1)
  endif()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

function(_torchamp_read_cxx11_abi root out)
  file(STRINGS "${root}/lib/libc10.so" symbols REGEX "NSt7__cxx1112basic_string" LIMIT_COUNT 1)
  if(symbols)
    set(${out} 1 PARENT_SCOPE)
  else()
    set(${out} 0 PARENT_SCOPE)
  endif()
endfunction()

# libtorch.so names libtorch_cuda.so where torch has one, so it must stay NEEDED although nothing
# refers to it: a program linked against a CPU build then finds CUDA in a CUDA build.
function(_torchamp_define_torch_target root abi)
  if(TARGET torchamp::torch)
    return()
  endif()
  add_library(torchamp::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(torchamp::torch SYSTEM INTERFACE
    "${root}/include" "${root}/include/torch/csrc/api/include")
  target_compile_definitions(torchamp::torch INTERFACE "_GLIBCXX_USE_CXX11_ABI=${abi}")
  target_link_libraries(torchamp::torch INTERFACE
    "-Wl,--push-state,--no-as-needed,${root}/lib/libtorch.so,--pop-state"
    "${root}/lib/libtorch_cpu.so" "${root}/lib/libc10.so")
endfunction()

function(torchamp_find_torch)
  _torchamp_locate_torch(root)
  _torchamp_is_torch_root("${root}" found)
  if(NOT found)
    message(FATAL_ERROR
      "torchamp: no torch found (looked at: '${root}').\n"
      "Name one of:\n"
      "  -DTORCHAMP_TORCH_ROOT=<LibTorch folder or site-packages/torch>\n"
      "  -DCMAKE_PREFIX_PATH=<LibTorch folder>\n"
      "  -DPython3_EXECUTABLE=<a Python that has torch>   (pip install torch)")
  endif()
  _torchamp_read_version("${root}" version)
  _torchamp_read_cxx11_abi("${root}" abi)
  _torchamp_define_torch_target("${root}" ${abi})
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${version}")
  file(GLOB openmp "${root}/lib/libgomp*.so*" "${root}/../torch.libs/libgomp*.so*")
  set(has_cuda FALSE)
  if(EXISTS "${root}/lib/libtorch_cuda.so")
    set(has_cuda TRUE)
  endif()
  set(TORCHAMP_TORCH_ROOT_FOUND "${root}" PARENT_SCOPE)
  set(TORCHAMP_TORCH_VERSION "${version}" PARENT_SCOPE)
  set(TORCHAMP_TORCH_MINOR "${minor}" PARENT_SCOPE)
  set(TORCHAMP_TORCH_CXX11_ABI ${abi} PARENT_SCOPE)
  set(TORCHAMP_TORCH_HAS_CUDA ${has_cuda} PARENT_SCOPE)
  set(TORCHAMP_TORCH_OPENMP "${openmp}" PARENT_SCOPE)
endfunction()
