//! Certificates for tests, made by the openssl that is installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::run;

const PATIENCE: Duration = Duration::from_mins(1);

/// Whether certificates can be made here.
pub fn has_openssl() -> bool {
    Path::new("/usr/bin/openssl").exists()
}

/// Makes a CA, and a certificate and a key that it signed for 127.0.0.1: `CA.pem`, `NAME.pem` and `NAME.key` in a directory.
/// Returns their paths in this order.
#[track_caller]
pub fn make_certificate(dir: &Path, ca: &str, name: &str) -> [PathBuf; 3] {
    let openssl = |args: &str| {
        let mut command = Command::new("openssl");
        run(command.current_dir(dir).args(args.split_whitespace()), PATIENCE).success();
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    std::fs::write(dir.join("extensions"), "subjectAltName = IP:127.0.0.1\n").expect("the directory can be written");
    openssl(&format!("req -x509 {key} -keyout {ca}.key -out {ca}.pem -subj /CN={ca} -days 2"));
    openssl(&format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
    let signed_by = format!("-CA {ca}.pem -CAkey {ca}.key -CAcreateserial -extfile extensions -days 2");
    openssl(&format!("x509 -req -in {name}.csr -out {name}.pem {signed_by}"));
    [format!("{ca}.pem"), format!("{name}.pem"), format!("{name}.key")].map(|file| dir.join(file))
}
