"""The style sheet of the pages: one column on a phone, black on white in print; no state is told by colour alone."""

STYLE = """
:root { --good: #0a6b4d; --bad: #b3261e; --idle: #6b6b6b; --line: #d5d5d5; --soft: #f4f4f2; }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; }
main { max-width: 52rem; margin: 0 auto; padding: 1rem; }
h1 { margin: .5rem 0 0; font-size: 1.7rem; overflow-wrap: anywhere; }
h2 { margin: 2rem 0 .5rem; font-size: 1.2rem; }
h3 { margin: 0; font-size: 1rem; }
.sub { margin: 0 0 1rem; color: #555; }
.total { font-size: 1.2rem; }
.problem { padding: .6rem .8rem; border: 2px solid var(--bad); }
section { margin: 1.2rem 0; padding: .2rem .9rem .8rem; border: 1px solid var(--line);
  border-left: .4rem solid var(--idle); }
section h2 { margin: .5rem 0 0; }
section.passed { border-left-color: var(--good); }
section.failed { border-left-color: var(--bad); }
.state { margin: .1rem 0 .5rem; color: #555; }
.state span { font-weight: 600; color: var(--idle); }
.passed .state span, td.passed { color: var(--good); }
.failed .state span, td.failed { color: var(--bad); }
.why { font-size: 1.05rem; }
pre { margin: .5rem 0; padding: .6rem .8rem; background: var(--soft); font: .85rem/1.45 ui-monospace, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem .9rem; margin: .6rem 0; }
dt { color: #555; }
dd { margin: 0; overflow-wrap: anywhere; }
dd span { font-weight: 700; }
dd.passed span { color: var(--good); }
dd.failed span { color: var(--bad); }
summary { cursor: pointer; color: #555; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; }
td + td, tr > td { font-variant-numeric: tabular-nums; }
th.turned { height: 9.5rem; vertical-align: bottom; padding: .25rem; font-weight: 400; }
th.turned span { writing-mode: vertical-rl; transform: rotate(180deg); white-space: nowrap; }
th.name { font-weight: 400; overflow-wrap: anywhere; min-width: 7rem; }
.bar { margin: .9rem 0; padding-bottom: .6rem; border-bottom: 1px solid var(--line); break-inside: avoid; }
.bar p { margin: 0; color: #555; font-size: .9rem; }
.bar ul { margin: .4rem 0 0; padding-left: 1.2rem; }
.stack { display: flex; height: .8rem; margin-top: .3rem; background: var(--soft); }
.stack i { display: block; }
.stack .passed { background: var(--good); }
.stack .failed { background: repeating-linear-gradient(45deg, var(--bad) 0 6px, #d9776f 6px 9px); }
.stack .not-started { background: #c9c9c9; }
.stack .blocked { background: #8a8a8a; }
@media (max-width: 30rem) {
  body { font-size: 15px; }
  dl { grid-template-columns: 1fr; } th, td { padding: .25rem .3rem; } th.name { min-width: 5.5rem; }
}
@media print {
  main { max-width: none; padding: 0 .3rem; }
  section, .bar, tr { break-inside: avoid; }
  a { color: inherit; text-decoration: none; }
  .wide { overflow: visible; }
  .stack i { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""
