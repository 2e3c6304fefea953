//! What etcd's client says of a failure, as people read it, and what to do.

use std::error::Error;

/// An error as people read it.
pub(crate) fn words_of(error: &etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) if status.message() == "tcp connect error" => {
            "nobody answers there: is it running, and is that its address?".to_owned()
        }
        // So a connection looks whose other end has refused it after it was made: by the moment at
        // which the client learns of it.
        etcd_client::Error::GRpcStatus(status)
            if matches!(status.message(), "operation was canceled" | "transport error") =>
        {
            let mut cause: Option<&dyn Error> = status.source();
            while let Some(below) = cause.and_then(Error::source) {
                cause = Some(below);
            }
            let cause = cause.map(|cause| format!(" ({cause})")).unwrap_or_default();
            format!("it has ended the connection{cause}: does it ask for a certificate?")
        }
        etcd_client::Error::GRpcStatus(status) if let Some(words) = plain(status.message()) => {
            format!("{words} ({})", status.message())
        }
        etcd_client::Error::GRpcStatus(status) => match advice(status.message()) {
            Some(advice) => format!("{advice} ({})", status.message()),
            None => status.message().to_owned(),
        },
        other => other.to_string(),
    }
}

/// What has happened, by what the client's library says of it.
fn plain(said: &str) -> Option<&'static str> {
    let words = [
        ("Timeout expired", "it does not answer in time: does it run, and have a majority?"),
        ("error reading a body from connection", "it has ended the connection"),
        ("http2 error", "what answers there is no etcd: is that its address?"),
        ("dns error", "its name cannot be found"),
    ];
    words.into_iter().find(|(sign, _)| said.contains(sign)).map(|(_, words)| words)
}

/// What to do where etcd lets a user not in, by what it says.
fn advice(said: &str) -> Option<&'static str> {
    if said.contains("authentication failed") {
        Some("it refuses the user or the password: check the user’s name and password")
    } else if said.contains("user name is empty") {
        Some("it asks for a user and a password, and was given none")
    } else if said.contains("permission denied") {
        Some("the user may not see to these keys: grant a role of the user’s /remora/CLUSTER/")
    } else {
        None
    }
}
