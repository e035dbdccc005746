# NCCL::headers: the header is enough, because the program loads the library only for runs that need it.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_INCLUDE_DIR)
if(NCCL_FOUND AND NOT TARGET NCCL::headers)
  add_library(NCCL::headers INTERFACE IMPORTED)
  target_include_directories(NCCL::headers INTERFACE ${NCCL_INCLUDE_DIR})
  target_link_libraries(NCCL::headers INTERFACE CUDA::toolkit)
endif()
