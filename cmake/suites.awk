# awk -v module=M -v binary=FILE -v runner=FILE -v folder=DIR -v alone=REGEX
#     -v waits=REGEX -v properties=TEXT -f suites.awk: from what a GoogleTest
# binary says with --gtest_list_tests, the entries of ctest, on standard output,
# and in the folder a file ENTRY.tests with the tests of each entry.
/^[^ ]/ {
  suite = $1
}
/^  / {
  test = suite $1
  entry = module "." (alone != "" && test ~ alone ? test : suite)
  sub(/\.$/, "", entry)
  if (!(entry in tests)) {
    order[++count] = entry
  }
  tests[entry] = tests[entry] test "\n"
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
