"""`tpcourse grade`: a folder of submissions becomes grades, whatever the notebooks in it do.

The way of one submission:

1. `find` reads files as bytes, and never follows a link out of the folder or a name out of a zip.
2. `match` and `rebuild` take the official cells and outputs, and the student's text of answer cells only.
3. `nursery` imported torch once; it forks a `warden` for each run.
4. The warden starts two sides that share one folder: the *judge* (pytest, nbval, the notebook's kernel) runs official
   cells alone; the *pen* (the fork server of the ranks, and the ranks) runs whatever the student wrote.
5. `verdict` asks three witnesses for a point, all on the judge's side: the cell ended well, nbval found the official
   output, and the check's own verdict, noted by `guard`, is `passed`. The default is failed.
6. What loses ranks or kernel ends a run; the next one leaves that answer out, so the rest is graded.

**What isolation is.** On Linux, where namespaces are allowed (to root, or to everybody): judge and pen each have a file
system that is read-only but for their own folder, which is in memory and of limited size. The pen sees neither judge,
submissions, grades, solutions nor any home; it has process numbers of its own (nothing outside can be seen or killed,
and all of it ends with the pen), a network with nothing but loopback, no capabilities, limits on memory, processes and
file size, and another user id if the grader is root. What a rank answers is read by an unpickler that knows plain data
only, so no answer runs code in the kernel that judges it; inputs are drawn, and results compared, there, and no rank is
sent another's. Around each check the functions of tpcourse, torch and Python in each rank are compared with what they
were before any answer (`intact`), and its ledger with what torch's C++ code counted and recorded (`witness`).

**What it is not.** What a rank sent, and for lesson 03 what it held, is counted in that rank: an answer that writes
into the memory of its process can lie about it, and ranks can talk through files. It must still get the right values
for inputs that it does not have. Kernels have faults: grade untrusted classes in a container or a virtual machine.
Where there are no namespaces (macOS, most containers), only limits, process groups and, for root, another user id are
left: an answer can then read this user's files, use the network, and attack the judge. `grades.json` and the last
lines printed say which it was; docs/grading.md says more.
"""
