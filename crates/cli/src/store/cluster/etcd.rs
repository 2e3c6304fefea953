//! The way to etcd, as the options say it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use remora_cluster::etcd::{EtcdGroup, EtcdTls};

use super::{ETCD, EtcdArgs};
use crate::failure::wrong_line;

/// Has the user's password where no file does.
const PASSWORD: &str = "REMORA_ETCD_PASSWORD";

impl EtcdArgs {
    /// The group or cluster of this name in the etcd that was named.
    ///
    /// # Errors
    /// A file cannot be read, or the options do not go together.
    pub(super) fn group(&self, name: &str) -> Result<EtcdGroup> {
        self.check().map_err(wrong_line)?;
        let mut group = EtcdGroup::new(self.endpoints(), name);
        group.user = self.user()?;
        group.tls = self.tls()?;
        Ok(group)
    }

    fn endpoints(&self) -> Vec<String> {
        if self.etcd.is_empty() { vec![ETCD.to_owned()] } else { self.etcd.clone() }
    }

    /// The options as a person writes them.
    pub(super) fn written(&self) -> String {
        let user = self.etcd_user.as_ref().map(PathBuf::from);
        let more = [
            ("--etcd-ca", &self.etcd_ca),
            ("--etcd-cert", &self.etcd_cert),
            ("--etcd-key", &self.etcd_key),
            ("--etcd-user", &user),
            ("--etcd-password-file", &self.etcd_password_file),
        ];
        let mut words = format!("--etcd {}", self.endpoints().join(","));
        for (option, value) in more {
            if let Some(value) = value {
                words += &format!(" {option} {}", value.display());
            }
        }
        words
    }

    /// (A user who lists this machine's processes sees their options, and not their environment.)
    fn user(&self) -> Result<Option<(String, String)>> {
        let Some(user) = &self.etcd_user else { return Ok(None) };
        let password = match &self.etcd_password_file {
            Some(file) => {
                let text = read(file, "etcd’s password")?;
                let text = String::from_utf8(text).context("etcd’s password is no UTF-8")?;
                text.trim_end_matches(['\r', '\n']).to_owned()
            }
            None => std::env::var(PASSWORD).map_err(|_| {
                wrong_line(anyhow!(
                    "--etcd-user {user} needs a password: name its file by --etcd-password-file, \
                     or set {PASSWORD}"
                ))
            })?,
        };
        Ok(Some((user.clone(), password)))
    }

    /// An error if the options do not go together.
    fn check(&self) -> Result<()> {
        let is_tls = |url: &&String| url.starts_with("https:");
        let Some(url) = self.etcd.iter().find(is_tls) else {
            ensure!(self.etcd_ca.is_none(), "--etcd-ca is for etcd by TLS: write --etcd https://…");
            return Ok(());
        };
        ensure!(
            self.etcd.iter().all(|url| is_tls(&url)),
            "all members of etcd are reached by https:, or none is"
        );
        ensure!(
            self.etcd_ca.is_some(),
            "{url} needs --etcd-ca, the certificates of who may have signed etcd’s; those of the \
             system are in /etc/ssl/certs/ca-certificates.crt"
        );
        Ok(())
    }

    fn tls(&self) -> Result<Option<EtcdTls>> {
        let Some(ca) = &self.etcd_ca else { return Ok(None) };
        let own = match (&self.etcd_cert, &self.etcd_key) {
            (Some(certificate), Some(key)) => {
                let certificate = read(certificate, "the certificate that etcd is shown")?;
                Some((certificate, read(key, "the key of the certificate that etcd is shown")?))
            }
            _ => None,
        };
        Ok(Some(EtcdTls { ca: read(ca, "the certificates of etcd’s authorities")?, own }))
    }
}

fn read(file: &Path, what: &str) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {what}: {}", file.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        etcd: EtcdArgs,
    }

    #[test]
    fn the_options_are_written_as_they_were_given() {
        let written = |line: &str| {
            let words = ["x"].into_iter().chain(line.split_whitespace());
            Line::try_parse_from(words).unwrap().etcd.written()
        };
        assert_eq!(written(""), format!("--etcd {ETCD}"));
        let all = "--etcd https://a:1,https://b:1 --etcd-ca /ca.pem --etcd-user me";
        assert_eq!(written(all), all);
    }
}
