//! A card's capture, which must not disturb the card: when its file cannot be written, it ends.

use std::fs::File;
use std::io::{self, BufWriter};
use std::time::{SystemTime, UNIX_EPOCH};

use remora_nic::Datagram;

use super::Capture;
use crate::egress::Sent;

/// The capture of one card, if it has one.
#[derive(Debug)]
pub(crate) struct Recorder(Recording);

#[derive(Debug)]
enum Recording {
    Off,
    On(Capture<BufWriter<File>>),
    /// The file could not be written. This many packets are missing from it since.
    Ended {
        missed: u64,
    },
}

impl Recorder {
    pub(crate) fn new(capture: Option<Capture<BufWriter<File>>>) -> Recorder {
        Recorder(capture.map_or(Recording::Off, Recording::On))
    }

    /// Are packets captured?
    pub(crate) fn is_on(&self) -> bool {
        matches!(self.0, Recording::On(_))
    }

    /// Packets that are missing because the file could not be written.
    pub(crate) fn missed(&self) -> u64 {
        if let Recording::Ended { missed } = self.0 { missed } else { 0 }
    }

    /// Records packets that have just left.
    #[inline]
    pub(crate) fn sent(&mut self, group: &Sent<'_>) {
        match &mut self.0 {
            Recording::Off => {}
            Recording::On(capture) => {
                let written = capture.sent(wall_clock(), group);
                self.note(written, group.datagrams().count());
            }
            Recording::Ended { missed } => *missed += group.datagrams().count() as u64,
        }
    }

    /// Records packets that have arrived on UDP port `port`.
    #[inline]
    pub(crate) fn received<'a>(
        &mut self,
        datagrams: impl Iterator<Item = Datagram<'a>>,
        port: u16,
    ) {
        if matches!(self.0, Recording::Off) {
            return;
        }
        let at = wall_clock();
        for datagram in datagrams {
            match &mut self.0 {
                Recording::Off => {}
                Recording::On(capture) => {
                    let written = capture.received(at, &datagram, port);
                    self.note(written, 1);
                }
                Recording::Ended { missed } => *missed += 1,
            }
        }
    }

    /// Hands what is buffered to the file.
    pub(crate) fn flush(&mut self) {
        if let Recording::On(capture) = &mut self.0 {
            let written = capture.flush();
            self.note(written, 0);
        }
    }

    /// Ends the capture if `packets` could not be written.
    fn note(&mut self, written: io::Result<()>, packets: usize) {
        if let Err(error) = written {
            tracing::warn!(
                "the capture ends, as its file cannot be written: {error}; later packets are \
                 missing from it, and counted in capture_missed"
            );
            self.0 = Recording::Ended { missed: packets as u64 };
        }
    }
}

/// Nanoseconds since 1970.
fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}
