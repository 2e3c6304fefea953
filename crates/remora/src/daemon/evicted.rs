//! Who has ended a session by `remora nic evict`, and when: for the programs that had it, and for
//! those that would take it over.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use super::sessions::Session;
use crate::calendar::Day;
use crate::message::SessionToken;

/// The most sessions of which it is remembered.
const MOST: usize = 64;

/// Who asks for the end of a session.
pub(super) struct Evictor {
    pub(super) uid: u32,
    /// The process, if it lives still.
    pub(super) pid: Option<i32>,
}

impl Evictor {
    /// What the session's programs are told.
    pub(super) fn reason(&self, now: SystemTime) -> String {
        let user = match self.uid {
            0 => "root".to_owned(),
            uid => format!("user {uid}"),
        };
        let process = self.pid.map(|pid| format!(", process {pid},")).unwrap_or_default();
        let at = utc(now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()));
        format!("the session was ended by {user}{process} at {at} (remora nic evict)")
    }
}

/// The sessions that were ended last.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    sessions: VecDeque<(u32, SessionToken, String)>,
}

impl Evicted {
    pub(super) fn add(&mut self, held: &Session, reason: &str) {
        if self.sessions.len() == MOST {
            self.sessions.pop_front();
        }
        self.sessions.push_back((held.uid, held.token, reason.to_owned()));
    }

    /// Why the session of this user and token has ended, if it is one of these.
    pub(super) fn reason(&self, uid: u32, token: &SessionToken) -> Option<&str> {
        let ended = self.sessions.iter().find(|(of, its, _)| (*of, its) == (uid, token));
        ended.map(|(_, _, reason)| reason.as_str())
    }
}

/// A time in seconds since 1970, as a person reads it.
fn utc(seconds: u64) -> String {
    let day = Day(i32::try_from(seconds / 86_400).unwrap_or(i32::MAX));
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{day} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_to_the_second() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
