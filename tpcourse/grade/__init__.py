"""`tpcourse grade`: a folder of submissions becomes grades, whatever the notebooks in it do.

The way of one submission:

1. `find` reads files as bytes, and never follows a link out of the folder or a name out of a zip.
2. `rebuild` takes the official cells and outputs, and the student's text of answer cells only.
3. `nursery` imported torch once; it forks a `warden` for each submission.
4. The warden starts two sides that share nothing but one folder: the *judge* (pytest, nbval, the notebook's kernel) runs
   official cells alone; the *pen* (the fork server of the ranks) runs whatever the student wrote.
5. `verdict` asks three witnesses for a point, all on the judge's side: the cell ended well, nbval found the official
   output, and the check's own verdict, noted by `guard`, is `passed`. The default is failed.

**What isolation is.** On Linux, where namespaces are allowed (root, or unprivileged user namespaces): the judge and the
pen each have a file system that is read-only but for their own folder, in memory and of limited size; the pen sees
neither judge, submissions, grades, solutions nor the user's home, has its own process numbers (nothing outside can be
seen, stopped or killed, and all of it ends with the pen), a network of its own with nothing but loopback, no
capabilities, limits on memory, processes and file size, and another user id if the grader is root. What a rank answers is read by
an unpickler that knows plain data only, so an answer cannot reach the kernel that judges it; inputs are drawn and results
compared there. Before each check the functions of tpcourse, torch and builtins in each rank are compared with what they
were before the first answer.

**What it is not.** The calls of a rank are counted inside that rank: an answer that rewrites the ledger *and* the comparison
of functions, from native code for example, can lie about what it sent (never about values). Kernels have faults: for
untrusted classes run the grader in a container or a virtual machine, see TEACHING.md. Where the system allows no
namespaces (macOS, most containers) only limits, process groups and, for root, another user id are left: an answer can then
read files of this user, use the network, and attack the judge. `grades.json` and the last line printed say which it was.
"""
