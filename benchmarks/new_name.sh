# Sourced: new_name STEM prints STEM.json, or STEM-2.json and so on: never the name that an artifact,
# or the journal of an unfinished grid, has already.
new_name() {
  local name=$1 n=1
  while [ -e "$name.json" ] || [ -e "$name.json.journal.jsonl" ]; do
    n=$((n + 1))
    name=$1-$n
  done
  echo "$name.json"
}
