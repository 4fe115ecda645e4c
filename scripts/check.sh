#!/usr/bin/env bash
# Everything that must hold before a commit and needs no service: format and lint, types, import rules, dead code, unit tests.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/node_modules/.bin:$PATH"

step() { printf '\n== %s\n' "$1"; }

step 'format and lint'
biome check --error-on-warnings .

step 'types'
tsc --noEmit
# The page of the browser tests knows a browser's types, which nothing else may.
tsc --noEmit -p tests/support/page

step 'import rules'
# Without TypeScript's own API (version 7 has none) the tool finds no module, no violation, and is content. So count.
report=$(depcruise src)
printf '%s\n' "$report"
cruised=$(sed -n 's/.*(\([0-9]\{1,\}\) modules.*/\1/p' <<<"$report")
files=$(find src -name '*.ts' -o -name '*.tsx' | wc -l)
if [ "${cruised:-0}" -lt "$files" ]; then
  echo "only ${cruised:-0} modules were looked at, but src has $files files: is the dev dependency \`typescript\` still version 6?" >&2
  exit 1
fi

step 'dead code'
knip
# Again without the tests: what only a test uses is dead.
knip --production

step 'unit tests'
vitest run --project unit
