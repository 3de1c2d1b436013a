#!/usr/bin/env bash
# The Debian package: the release binaries, and the shell completions that they write, packed by cargo-deb as
# broker/Cargo.toml says.
# BUILD=no takes the binaries that are in target/release.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh

# The version that the package was tried with.
cargo_deb=3.8.0

bin=target/release
dir=target/deb

write_parts() {
    local name version
    mkdir -p "$dir"/{bash,zsh,fish}
    for name in corelane corelane-loadgen; do
        "$bin/$name" completions bash >"$dir/bash/$name"
        "$bin/$name" completions zsh >"$dir/zsh/_$name"
        "$bin/$name" completions fish >"$dir/fish/$name.fish"
    done
    # Debian wants a change log in a form of its own.
    version=$("$bin/corelane" --version)
    cat >"$dir/changelog" <<TEXT
corelane (${version#* }-1) unstable; urgency=medium

  * What changed is told in /usr/share/doc/corelane/changelog.gz.

 -- The Corelane authors <corelane@localhost>  $(git log -1 --format=%cD 2>/dev/null || date -R)
TEXT
}

# A default that comes from the environment would stand in what is written.
unset CORELANE_BROKER
[ "${BUILD:-yes}" = no ] || build_release
rm -rf "$dir"
# An older version beside it would be installed by the same words.
rm -f target/debian/corelane_*.deb
write_parts

# Of its own, beside whichever version somebody has installed.
export PATH=$PWD/target/tools/bin:$PATH
if [ "$(cargo-deb --version 2>/dev/null)" != "cargo-deb $cargo_deb" ]; then
    "${CARGO:-cargo}" install cargo-deb --locked --version "$cargo_deb" --root target/tools
fi
# It warns that it will not build what is in target/deb: that is done already.
package=$("${CARGO:-cargo}" deb --locked --no-build --strip -p corelane-broker)
echo "the package: $package"
