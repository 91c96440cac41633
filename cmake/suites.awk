# awk -v module=M -v binary=FILE -v runner=FILE -v folder=DIR -v by_folder=TRUE|FALSE
#     -v alone=REGEX -v waits=REGEX -v properties=TEXT -f suites.awk FILE: from
# what a GoogleTest binary writes with --gtest_list_tests --gtest_output=json:FILE,
# the entries of ctest, on standard output, and in the folder a file ENTRY.tests
# with the tests of each entry.
function value_of(line) {
  sub(/^[^:]*: "/, "", line)
  sub(/",?$/, "", line)
  gsub(/\\\//, "/", line) # JSON lets one write / as \/, and GoogleTest does
  return line
}
# The folder of a source below that of its module: "zero" of
# tests/ddp/zero/plan_test.cpp, none of tests/ddp/failure_test.cpp.
function folder_of(source) {
  sub(/.*\/tests\/[^\/]*\//, "", source)
  if (!sub(/\/[^\/]*$/, "", source)) {
    return ""
  }
  gsub("/", ".", source)
  return source
}
function entry_of(source) {
  if (alone != "" && suite "." test ~ alone) {
    return module "." suite "." test
  }
  if (by_folder != "TRUE" || (waits != "" && module "." suite ~ waits)) {
    return module "." suite
  }
  source = folder_of(source)
  return source == "" ? module : module "." source
}
/^      "name": / {
  suite = value_of($0)
}
/^          "name": / {
  test = value_of($0)
}
/^          "file": / {
  entry = entry_of(value_of($0))
  if (!(entry in tests)) {
    order[++count] = entry
  }
  tests[entry] = tests[entry] suite "." test "\n"
}
END {
  for (i = 1; i <= count; ++i) {
    entry = order[i]
    file = entry
    gsub("/", "_", file)
    file = folder "/" file ".tests"
    printf "%s", tests[entry] > file
    close(file)
    printf "add_test(\"%s\" \"%s\" \"%s\" \"%s\")\n", entry, runner, binary, file
    own = properties
    if (waits != "" && entry ~ waits) {
      sub(/RESOURCE_LOCK [a-z]+ /, "", own)
      sub(/PROCESSORS 2/, "PROCESSORS 1", own)
    }
    printf "set_tests_properties(\"%s\" PROPERTIES %s)\n", entry, own
  }
}
