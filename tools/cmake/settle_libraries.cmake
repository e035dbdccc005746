# Part of the installation: the program and its shared libraries find each other in lib/, whatever the system has.
find_program(PATCHELF patchelf)
if(NOT PATCHELF)
  message(FATAL_ERROR "the installation needs patchelf (Debian package patchelf)")
endif()
function(patchelf)
  execute_process(COMMAND ${PATCHELF} ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Only what was just installed: the folder may hold other libraries.
set(prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
set(libraries "")
foreach(file ${CMAKE_INSTALL_MANIFEST_FILES})
  if(file MATCHES "/lib/[^/]+[.]so[.0-9]*$" AND NOT IS_SYMLINK "$ENV{DESTDIR}${file}")
    list(APPEND libraries "$ENV{DESTDIR}${file}")
  endif()
endforeach()

# DT_RPATH, not DT_RUNPATH: it holds for the libraries' own needs too, and comes before LD_LIBRARY_PATH, so that another
# PCRE2 or ICU there does not change token ids.
patchelf(--force-rpath --set-rpath "$ORIGIN/../lib" "${prefix}/bin/grpo_train")

# gloo's InfiniBand library under a name of ours: NCCL loads the system's own, which must fit the system's drivers.
set(verbs ${libraries})
list(FILTER verbs INCLUDE REGEX "/libibverbs[.]so")
if(verbs)
  file(REMOVE "${prefix}/lib/libibverbs.so.1")
  file(RENAME "${verbs}" "${prefix}/lib/libgrpo_ibverbs.so.1")
  patchelf(--set-soname libgrpo_ibverbs.so.1 "${prefix}/lib/libgrpo_ibverbs.so.1")
  list(FILTER libraries EXCLUDE REGEX "/libibverbs[.]so")
  patchelf(--replace-needed libibverbs.so.1 libgrpo_ibverbs.so.1 ${libraries})
endif()
