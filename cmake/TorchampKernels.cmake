# Embeds the CUDA kernels in the library: always as source, for NVRTC, and as a fatbin if nvcc is
# found. No CUDA library is linked, so nvcc's and torch's CUDA versions may differ.

set(TORCHAMP_USE_CUDA AUTO CACHE STRING "AUTO, ON or OFF: compile the CUDA kernels with nvcc")
set(TORCHAMP_CUDA_ARCHS "" CACHE STRING "Architectures of the fatbin, as 80;90; generations: the oldest of each that nvcc knows; empty: this machine's cards', or 80;90 if it has none")
set_property(CACHE TORCHAMP_USE_CUDA PROPERTY STRINGS AUTO ON OFF)

get_filename_component(_TORCHAMP_ROOT "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
set(_TORCHAMP_CSRC "${_TORCHAMP_ROOT}/csrc")
set(_TORCHAMP_KERNEL_PROGRAM "${_TORCHAMP_CSRC}/cuda/kernels.cu")
set(_TORCHAMP_GENERATED "${PROJECT_BINARY_DIR}/generated")

# Required for kernel parameters of 32 KB and __grid_constant__.
set(_TORCHAMP_OLDEST_NVCC 12.1)
set(_TORCHAMP_OLDEST_ARCH 70)

# Nothing is compiled for the host, so any host compiler works.
set(_TORCHAMP_NVCC_OPTIONS -std=c++17 -allow-unsupported-compiler)

# The names of a file's quoted includes.
function(_torchamp_includes_of file out)
  file(STRINGS "${file}" lines REGEX "^[ \t]*#[ \t]*include[ \t]*\"")
  set(names "")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^[^\"]*\"([^\"]+)\".*$" "\\1" name "${line}")
    list(APPEND names "${name}")
  endforeach()
  set(${out} "${names}" PARENT_SCOPE)
endfunction()

function(_torchamp_resolve_include name including_file out)
  get_filename_component(folder "${including_file}" DIRECTORY)
  foreach(root "${folder}" "${_TORCHAMP_CSRC}")
    if(EXISTS "${root}/${name}")
      get_filename_component(path "${root}/${name}" ABSOLUTE)
      set(${out} "${path}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "torchamp: \"${name}\", included by ${including_file}, is not in csrc/")
endfunction()

# Everything that the kernel program includes, as two lists: the text of each #include, and its file.
function(_torchamp_collect_sources out_names out_files)
  set(names "kernels.cu")
  set(files "${_TORCHAMP_KERNEL_PROGRAM}")
  set(queue "${_TORCHAMP_KERNEL_PROGRAM}")
  while(queue)
    list(POP_FRONT queue current)
    _torchamp_includes_of("${current}" included)
    foreach(name IN LISTS included)
      _torchamp_resolve_include("${name}" "${current}" path)
      list(FIND names "${name}" index)
      if(index EQUAL -1)
        list(APPEND names "${name}")
        list(APPEND files "${path}")
        list(APPEND queue "${path}")
      else()
        list(GET files ${index} known)
        if(NOT known STREQUAL path)
          message(FATAL_ERROR "torchamp: #include \"${name}\" names both ${known} and ${path}")
        endif()
      endif()
    endforeach()
  endwhile()
  set(${out_names} "${names}" PARENT_SCOPE)
  set(${out_files} "${files}" PARENT_SCOPE)
endfunction()

function(_torchamp_write_sources names files)
  set(ENTRIES "")
  foreach(name file IN ZIP_LISTS names files)
    file(READ "${file}" text)
    string(APPEND ENTRIES "      {\"${name}\", R\"torchamp_(${text})torchamp_\"},\n")
  endforeach()
  configure_file("${_TORCHAMP_ROOT}/cmake/embedded_sources.cpp.in"
                 "${_TORCHAMP_GENERATED}/embedded_sources.cpp" @ONLY)
endfunction()

# Compiles a trial file and sets the reason if nvcc fails: its components or a suitable host compiler
# may be missing.
function(_torchamp_try_nvcc out_reason)
  set(trial "${_TORCHAMP_GENERATED}/trial")
  file(WRITE "${trial}.cu" "extern \"C\" __global__ void trial() {}\n")
  execute_process(COMMAND "${TORCHAMP_NVCC}" ${_TORCHAMP_NVCC_OPTIONS} -cubin "${trial}.cu"
                          -o "${trial}.cubin"
                  RESULT_VARIABLE status OUTPUT_VARIABLE printed ERROR_VARIABLE printed)
  set(reason "")
  if(NOT status EQUAL 0)
    string(REGEX MATCH "[^\n]+" line "${printed}")
    string(REGEX REPLACE "[\\\";]" "'" line "${line}")  # it becomes a C++ string
    set(reason "${TORCHAMP_NVCC} fails: ${line}")
  endif()
  set(${out_reason} "${reason}" PARENT_SCOPE)
endfunction()

# Sets the version of TORCHAMP_NVCC, or the reason why it cannot be used.
function(_torchamp_ask_nvcc out_version out_reason)
  execute_process(COMMAND "${TORCHAMP_NVCC}" --version OUTPUT_VARIABLE printed ERROR_QUIET)
  if(NOT printed MATCHES "V([0-9][0-9.]*)")
    set(reason "${TORCHAMP_NVCC} does not run")
  elseif(CMAKE_MATCH_1 VERSION_LESS _TORCHAMP_OLDEST_NVCC)
    set(reason "${TORCHAMP_NVCC} is ${CMAKE_MATCH_1}, the kernels need ${_TORCHAMP_OLDEST_NVCC}")
  else()
    set(${out_version} "${CMAKE_MATCH_1}" PARENT_SCOPE)
    _torchamp_try_nvcc(reason)
  endif()
  set(${out_reason} "${reason}" PARENT_SCOPE)
endfunction()

# Finds a usable nvcc and sets its version, or sets the reason why there is none.
function(_torchamp_find_nvcc out_version out_reason)
  set(version "")
  set(reason "nvcc was not found")
  if(NOT TORCHAMP_USE_CUDA)
    set(${out_reason} "TORCHAMP_USE_CUDA is OFF" PARENT_SCOPE)
    return()
  endif()
  find_program(TORCHAMP_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
               PATH_SUFFIXES bin DOC "The CUDA compiler; optional")
  if(TORCHAMP_NVCC)
    _torchamp_ask_nvcc(version reason)
  endif()
  if(reason AND NOT TORCHAMP_USE_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "torchamp: TORCHAMP_USE_CUDA is ${TORCHAMP_USE_CUDA}, but ${reason}: put nvcc "
                        "on PATH, set CUDA_HOME, or pass -DTORCHAMP_NVCC=<path>")
  endif()
  set(${out_version} "${version}" PARENT_SCOPE)
  set(${out_reason} "${reason}" PARENT_SCOPE)
endfunction()

function(_torchamp_check_archs archs)
  foreach(arch IN LISTS archs)
    if(NOT arch MATCHES "^[0-9]+[a-z]?$" OR arch VERSION_LESS _TORCHAMP_OLDEST_ARCH)
      message(FATAL_ERROR "torchamp: TORCHAMP_CUDA_ARCHS: expected architectures from "
                          "${_TORCHAMP_OLDEST_ARCH} on, as 80;90, or generations, got ${arch}")
    endif()
  endforeach()
endfunction()

# The oldest architecture of each generation; its code also runs on the later ones, 80's on 86 and 89.
function(_torchamp_oldest_of_each_generation archs out)
  set(chosen "")
  set(last "")
  foreach(arch IN LISTS archs)
    string(REGEX REPLACE ".$" "" generation "${arch}")
    if(arch GREATER_EQUAL _TORCHAMP_OLDEST_ARCH AND NOT generation STREQUAL last)
      list(APPEND chosen "${arch}")
      set(last "${generation}")
    endif()
  endforeach()
  set(${out} "${chosen}" PARENT_SCOPE)
endfunction()

function(_torchamp_known_archs out)
  execute_process(COMMAND "${TORCHAMP_NVCC}" --list-gpu-arch OUTPUT_VARIABLE listed)
  string(REGEX MATCHALL "[0-9]+" archs "${listed}")
  list(SORT archs COMPARE NATURAL)
  set(${out} "${archs}" PARENT_SCOPE)
endfunction()

# The architectures of this machine's cards, or the most common ones for training if it has none. Each
# architecture adds a third of the library's build time; NVRTC compiles for the others.
function(_torchamp_archs_of_cards known out)
  set(found "")
  find_program(TORCHAMP_NVIDIA_SMI nvidia-smi DOC "Lists this machine's cards; optional")
  if(TORCHAMP_NVIDIA_SMI)
    execute_process(COMMAND "${TORCHAMP_NVIDIA_SMI}" --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE printed ERROR_QUIET)
    string(REGEX MATCHALL "[0-9]+[.][0-9]" found "${printed}")
    string(REPLACE "." "" found "${found}")
  endif()
  set(archs "")
  foreach(arch IN LISTS found)
    if(arch IN_LIST known)
      list(APPEND archs "${arch}")
    endif()
  endforeach()
  if(NOT archs)
    set(archs 80 90)
  endif()
  list(REMOVE_DUPLICATES archs)
  set(${out} "${archs}" PARENT_SCOPE)
endfunction()

function(_torchamp_nvcc_archs out)
  set(archs "${TORCHAMP_CUDA_ARCHS}")
  _torchamp_known_archs(known)
  if(NOT archs)
    _torchamp_archs_of_cards("${known}" archs)
  elseif(archs STREQUAL "generations")
    _torchamp_oldest_of_each_generation("${known}" archs)
  endif()
  _torchamp_check_archs("${archs}")
  list(SORT archs COMPARE NATURAL)
  set(${out} "${archs}" PARENT_SCOPE)
endfunction()

function(_torchamp_nvcc_flags archs out)
  set(flags ${_TORCHAMP_NVCC_OPTIONS} -O3 -fmad=false --threads 0 "-I${_TORCHAMP_CSRC}")
  foreach(arch IN LISTS archs)
    list(APPEND flags "-gencode=arch=compute_${arch},code=sm_${arch}")
  endforeach()
  execute_process(COMMAND "${TORCHAMP_NVCC}" --help OUTPUT_VARIABLE help)
  if(help MATCHES "--compress-mode")
    list(APPEND flags --compress-mode=size)
  endif()
  set(${out} "${flags}" PARENT_SCOPE)
endfunction()

function(_torchamp_add_fatbin files archs)
  set(fatbin "${_TORCHAMP_GENERATED}/kernels.fatbin")
  _torchamp_nvcc_flags("${archs}" flags)
  add_custom_command(OUTPUT "${fatbin}"
    COMMAND "${TORCHAMP_NVCC}" ${flags} -fatbin "${_TORCHAMP_KERNEL_PROGRAM}" -o "${fatbin}"
    DEPENDS ${files} COMMENT "Compiling the CUDA kernels for ${archs}" VERBATIM)
  set(FATBIN "${fatbin}")
  configure_file("${_TORCHAMP_ROOT}/cmake/embedded_fatbin.cpp.in"
                 "${_TORCHAMP_GENERATED}/embedded_fatbin.cpp" @ONLY)
  set_source_files_properties("${_TORCHAMP_GENERATED}/embedded_fatbin.cpp" PROPERTIES
                              OBJECT_DEPENDS "${fatbin}")
endfunction()

# Sets, in the caller's scope: TORCHAMP_KERNEL_DATA (sources to compile into the library),
# TORCHAMP_FATBIN_ARCHS (as "80;90", or empty) and TORCHAMP_NVCC_STATUS (a version, or why absent).
function(torchamp_embed_kernels)
  _torchamp_collect_sources(names files)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  _torchamp_write_sources("${names}" "${files}")

  set(archs "")
  _torchamp_find_nvcc(status reason)
  if(reason)
    message(STATUS "torchamp: no fatbin (${reason}); the CUDA kernels are compiled by NVRTC when used")
    set(status "absent: ${reason}")
    configure_file("${_TORCHAMP_ROOT}/cmake/embedded_no_fatbin.cpp.in"
                   "${_TORCHAMP_GENERATED}/embedded_fatbin.cpp" COPYONLY)
  else()
    _torchamp_nvcc_archs(archs)
    _torchamp_add_fatbin("${files}" "${archs}")
    message(STATUS "torchamp: nvcc ${status} compiles the CUDA kernels for ${archs}")
  endif()
  set(TORCHAMP_KERNEL_DATA "${_TORCHAMP_GENERATED}/embedded_sources.cpp"
      "${_TORCHAMP_GENERATED}/embedded_fatbin.cpp" PARENT_SCOPE)
  set(TORCHAMP_FATBIN_ARCHS "${archs}" PARENT_SCOPE)
  set(TORCHAMP_NVCC_STATUS "${status}" PARENT_SCOPE)
endfunction()
