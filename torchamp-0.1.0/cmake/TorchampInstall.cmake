# The layout for `cmake --install` and for the wheel, where its root is site-packages/torchamp:
#   bin/torchamp-doctor  include/torchamp/  lib/libtorchamp.so  lib/pkgconfig/  share/cmake/torchamp/
# and, as a component that only the wheel installs, the compiled Python module.

include(CMakePackageConfigHelpers)

set(_TORCHAMP_CMAKE_DIR share/cmake/torchamp)
set(_TORCHAMP_PACKAGE_FILES "${PROJECT_BINARY_DIR}/package")

# The second entry is torch's folder beside the wheel: site-packages/torch/lib.
set_target_properties(torchamp PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../../torch/lib")

configure_package_config_file(cmake/torchampConfig.cmake.in
  "${_TORCHAMP_PACKAGE_FILES}/torchampConfig.cmake" INSTALL_DESTINATION ${_TORCHAMP_CMAKE_DIR})
write_basic_package_version_file("${_TORCHAMP_PACKAGE_FILES}/torchampConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
set(TORCHAMP_PC_TORCH "${TORCHAMP_TORCH_DIR}")
if(TORCHAMP_LOCAL_VERSION)  # a wheel to publish
  set(TORCHAMP_PC_TORCH "\${prefix}/../torch")
endif()
configure_file(cmake/torchamp.pc.in "${_TORCHAMP_PACKAGE_FILES}/torchamp.pc" @ONLY)

install(TARGETS torchamp EXPORT torchampTargets LIBRARY DESTINATION lib)
install(TARGETS torchamp_doctor RUNTIME DESTINATION bin)
install(DIRECTORY include/torchamp DESTINATION include)
install(EXPORT torchampTargets NAMESPACE torchamp:: DESTINATION ${_TORCHAMP_CMAKE_DIR})
install(FILES
  "${_TORCHAMP_PACKAGE_FILES}/torchampConfig.cmake"
  "${_TORCHAMP_PACKAGE_FILES}/torchampConfigVersion.cmake"
  cmake/TorchampFindTorch.cmake cmake/probe_torch.py DESTINATION ${_TORCHAMP_CMAKE_DIR})
install(FILES "${_TORCHAMP_PACKAGE_FILES}/torchamp.pc" DESTINATION lib/pkgconfig)

if(TARGET torchamp_python)
  set_target_properties(torchamp_python PROPERTIES
    INSTALL_RPATH "$ORIGIN/lib;$ORIGIN/../torch/lib")
  install(TARGETS torchamp_python LIBRARY DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  install(FILES "${TORCHAMP_PYTHON_PACKAGE}/_built_for.py" DESTINATION . COMPONENT python
          EXCLUDE_FROM_ALL)
endif()
