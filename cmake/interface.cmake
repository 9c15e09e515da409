# What a module and the program share: every header outside the module's folder that its files include, by way of others,
# too. Both are built with a hash of them, and fit if it is the same.

# shared_headers(ROOT FOLDER HEADERS READ [FIRST...]): sets HEADERS to them and READ to all files that were read, as paths
# below ROOT. FIRST are headers that they share in any case.
function(shared_headers root folder headers read)
  file(GLOB found RELATIVE ${root} ${root}/${folder}/*.c ${root}/${folder}/*.cu ${root}/${folder}/*.h)
  list(APPEND found ${ARGN})
  set(todo ${found})
  while(todo)
    list(POP_FRONT todo file)
    file(STRINGS ${root}/${file} lines REGEX "^#include \"")
    foreach(line ${lines})
      string(REGEX REPLACE "^#include \"([^\"]*)\".*" "src/\\1" header "${line}")
      if(NOT header IN_LIST found)
        list(APPEND found ${header})
        list(APPEND todo ${header})
      endif()
    endforeach()
  endwhile()
  list(SORT found)
  set(${read} ${found} PARENT_SCOPE)
  list(FILTER found EXCLUDE REGEX "^${folder}/")
  set(${headers} ${found} PARENT_SCOPE)
endfunction()

# hash_of_files(ROOT HASH FILE...): sets HASH to 16 digits that no other contents of the files have.
function(hash_of_files root hash)
  set(all)
  foreach(file ${ARGN})
    file(SHA256 ${root}/${file} one)
    string(APPEND all "${file} ${one}\n")
  endforeach()
  string(SHA256 all "${all}")
  string(SUBSTRING ${all} 0 16 all)
  set(${hash} ${all} PARENT_SCOPE)
endfunction()
