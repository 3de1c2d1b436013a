//! How etcd is reached.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use crate::limits::{ETCD_CONNECT_MAX, ETCD_PING_INTERVAL, ETCD_PING_MAX};
use crate::registry::store::{StoreError, StoreResult};

/// How etcd is reached.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// URLs of its members, `http://host:port` or `https://host:port`: one is used at a time, the others stand by.
    pub endpoints: Vec<String>,
    /// Everything that is asked of the store lies under this prefix, and its user may read it.
    pub prefix: String,
    /// Who the broker is to etcd, if that asks for it.
    pub user: Option<EtcdUser>,
    /// What `https` endpoints need.
    pub tls: Option<EtcdTls>,
}

/// Files in PEM, read once when the store is made.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// Who must have signed the servers' certificates.
    pub ca_file: PathBuf,
    /// The broker's own certificate and its private key, if etcd asks for one.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name in the servers' certificates, if it is not the one in their URL.
    pub server_name: Option<String>,
}

/// A user of etcd. Its password stands in a file and is read again for each connection, so that whoever changes it in etcd
/// changes it for a broker that runs by writing the file.
#[derive(Clone)]
pub struct EtcdUser {
    name: String,
    password_file: PathBuf,
    /// As the file had it when it could be read last.
    password: String,
    is_readable: bool,
}

impl EtcdUser {
    /// Reads the file's first line. Fails when that cannot be done.
    pub fn new(name: impl Into<String>, password_file: impl Into<PathBuf>) -> io::Result<Self> {
        let password_file = password_file.into();
        let password = read_password(&password_file)?;
        Ok(Self { name: name.into(), password_file, password, is_readable: true })
    }

    /// Options for a new connection.
    pub(super) fn sign_in(&mut self, options: ConnectOptions) -> ConnectOptions {
        match read_password(&self.password_file) {
            Ok(password) => (self.password, self.is_readable) = (password, true),
            Err(error) => {
                // What it held before may be right still.
                if std::mem::take(&mut self.is_readable) {
                    let path = self.password_file.display();
                    tracing::warn!(%path, %error, "etcd_password_file cannot be read; what it held before is used");
                }
            }
        }
        // Its tokens end by themselves, and with the member that gave them.
        options.with_user(&self.name, &self.password).with_auto_token_refresh(true)
    }
}

// The password stays out of logs.
impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdUser")
            .field("name", &self.name)
            .field("password_file", &self.password_file)
            .finish_non_exhaustive()
    }
}

fn read_password(path: &Path) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(File::open(path)?).read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

impl EtcdOptions {
    /// A server or several without TLS and without users.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>, prefix: impl Into<String>) -> Self {
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        Self { endpoints, prefix: prefix.into(), user: None, tls: None }
    }

    /// What the client library takes, with the files of certificates read, and without the user.
    pub(super) fn connect_options(&self) -> StoreResult<ConnectOptions> {
        let invalid = |reason: String| Err(StoreError::Invalid(reason));
        if self.endpoints.is_empty() {
            return invalid("no etcd endpoint is given".to_owned());
        }
        for endpoint in &self.endpoints {
            match (endpoint.split_once("://").map(|(scheme, _)| scheme), &self.tls) {
                (Some("http"), None) | (Some("https"), Some(_)) => {}
                (Some("http"), Some(_)) => return invalid(format!("TLS is set up, but {endpoint} goes without it")),
                (Some("https"), None) => return invalid(format!("{endpoint} needs the certificate of its CA")),
                _ => return invalid(format!("{endpoint} is not a URL that begins with http:// or https://")),
            }
        }
        // etcd closes connections that ping more often than every five seconds, or while nothing is asked on them.
        let mut options = ConnectOptions::new()
            .with_connect_timeout(ETCD_CONNECT_MAX)
            .with_keep_alive(ETCD_PING_INTERVAL, ETCD_PING_MAX)
            .with_keep_alive_while_idle(false)
            .with_require_leader(true);
        if let Some(tls) = &self.tls {
            options = options.with_tls(tls.read()?);
        }
        Ok(options)
    }
}

impl EtcdTls {
    fn read(&self) -> StoreResult<TlsOptions> {
        let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(read(&self.ca_file)?));
        if let Some((certificate, key)) = &self.client {
            options = options.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        Ok(match &self.server_name {
            Some(name) => options.domain_name(name),
            None => options,
        })
    }
}

fn read(path: &Path) -> StoreResult<Vec<u8>> {
    std::fs::read(path).map_err(|error| StoreError::Invalid(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused_with_the_endpoint_s_name() {
        let tls = EtcdTls { ca_file: "/nowhere/ca.pem".into(), client: None, server_name: None };
        let with = |endpoints: &[&str], tls: Option<&EtcdTls>| {
            let options = EtcdOptions { tls: tls.cloned(), ..EtcdOptions::new(endpoints.iter().copied(), "/") };
            options.connect_options().map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(with(&["http://a:2379", "http://b:2379"], None), Ok(()));
        for (refused, names) in [
            (with(&[], None), "no etcd endpoint"),
            (with(&["a:2379"], None), "a:2379"),
            (with(&["http://a:2379", "https://b:2379"], None), "https://b:2379"),
            (with(&["http://a:2379"], Some(&tls)), "http://a:2379"),
            (with(&["https://a:2379"], Some(&tls)), "/nowhere/ca.pem"),
        ] {
            assert!(refused.as_ref().is_err_and(|error| error.contains(names)), "{refused:?}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "secret\n").expect("written");
        let user = Some(EtcdUser::new("corelane", file.path()).expect("read"));
        let shown = format!("{:?}", EtcdOptions { user, ..EtcdOptions::new(["http://a"], "/") });
        assert!(shown.contains("corelane") && !shown.contains("secret"), "{shown}");
    }
}
