# grpo_cpu_features(ARCH FEATURES): the instruction sets that -march=ARCH lets the compiler use, as __builtin_cpu_supports
# names them: those that g++ and clang both know.
function(grpo_cpu_features arch features)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=${arch} -dM -E -x c++ /dev/null
                  OUTPUT_VARIABLE macros COMMAND_ERROR_IS_FATAL ANY)
  set(found "")
  foreach(feature avx2 fma bmi bmi2 avx popcnt sse4.2 avx512f avx512bw avx512cd avx512dq avx512vl)
    string(TOUPPER "__${feature}__" macro)
    string(REPLACE "." "_" macro "${macro}")
    if(macros MATCHES "#define ${macro} 1")
      list(APPEND found ${feature})
    endif()
  endforeach()
  set(${features} ${found} PARENT_SCOPE)
endfunction()
