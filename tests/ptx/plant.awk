# Writes PTX with one kind of fault: awk -v fault=KIND -f plant.awk kernels.ptx. Fails if the text has
# no place for it.

{ lines[NR] = $0 }

function remove(line) {
  lines[line] = ""
  ++planted
}

# The barriers before and after a ticket is drawn.
$1 == "bar.sync" {
  if (fault == "second_barrier" && drawn) remove(NR)
  barrier = NR
  drawn = 0
}
/atom\..*add/ {
  if (fault == "first_barrier") remove(barrier)
  drawn = 1
}

fault == "fences" && $1 ~ /^membar/ { remove(NR) }

# The first 64-bit field of each kernel that is not at the parameter's beginning. Only fields of the
# parameter itself: after those that are reached by its address may come padding of any value.
fault == "parameter" && /\.entry/ { shifted = 0 }
fault == "parameter" && !shifted && /ld\.param\.u64.*_param_0\+[0-9]+\]/ {
  match($0, /\+[0-9]+\]/)
  offset = substr($0, RSTART + 1, RLENGTH - 2)
  lines[NR] = substr($0, 1, RSTART) (offset + 8) substr($0, RSTART + RLENGTH - 1)
  shifted = 1
  ++planted
}

fault == "vector" && /ld\.global\.v4\.u32.*\[%rd[0-9]+\]/ {
  sub(/\];/, "+4];", lines[NR])
  ++planted
}

END {
  if (!planted) exit 1
  for (i = 1; i <= NR; ++i) print lines[i]
}
