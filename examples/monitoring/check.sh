#!/usr/bin/env bash
# Checks the alert rules, which of them fire, and metrics that are given on stdin, with Prometheus' own tool. Go builds that
# in five to ten minutes, once; so CI does not.
#
#   examples/monitoring/check.sh < /var/lib/node_exporter/lastkey_compact.prom
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

promtool() {
  if command -v promtool >/dev/null; then command promtool "$@"; else go run github.com/prometheus/prometheus/cmd/promtool@v0.316.0 "$@"; fi
}

if [ ! -t 0 ]; then promtool check metrics; fi
promtool check rules alerts.yml
promtool test rules alerts_test.yml
