//! A session that several processes use: the first client's guests.
//!
//! A guest has the session's objects and its arena, by a connection of its own. It posts and polls
//! as the first client does; events of the card go to the first client, so that a guest has no
//! completion channels. A forked child becomes a guest of its parent's session when it first uses
//! it.

use std::os::fd::BorrowedFd;

use super::{AttachError, Attached, Begun};
use crate::event::never;
use crate::message::{Hello, Join, OpenXrcd, Opened};

impl Begun {
    /// A guest's connection to the session that `host` has.
    pub(crate) fn guest(host: &Attached, join: Join) -> Result<Begun, AttachError> {
        let hello = Hello { join: Some(join), ..Hello::default() };
        let mut begun = Begun::at(&host.path, &hello)?;
        begun.wake = never().map_err(|error| AttachError::Greeting {
            path: host.path.clone(),
            reason: error.to_string(),
        })?;
        Ok(begun)
    }
}

impl Attached {
    /// What entitles another process of the user to use this session.
    pub(crate) fn join(&self) -> Join {
        self.join
    }

    /// Is another process stopped within the memory of this one, past an end?
    pub(crate) fn has_stopped_writer(&self) -> bool {
        self.loans.has_stopped()
    }

    /// From here on this is a guest.
    pub(crate) fn into_guest(mut self) -> Attached {
        self.is_guest = true;
        self.loans.shut();
        self.end_passes();
        self
    }

    /// Does another process get the card's events?
    pub(crate) fn is_guest(&self) -> bool {
        self.is_guest
    }

    /// In a forked child: goes on with a connection of its own. The inherited one is the parent's.
    ///
    /// # Errors
    /// The parent's session has ended, or the card's process has.
    pub(crate) fn fork(&mut self) -> Result<(), AttachError> {
        let begun = Begun::guest(self, self.join)?;
        (self.session, self.wake) = (begun.session, begun.wake);
        self.epoch = begun.welcome.epoch;
        self.loans.fork();
        self.end_passes();
        self.is_guest = true;
        Ok(())
    }

    /// Ends the use of the session.
    pub(crate) fn hang_up(&mut self) {
        self.session.hang_up();
    }

    /// Opens the XRC domain that a file names.
    pub(crate) fn open_xrcd(&mut self, how: OpenXrcd, file: BorrowedFd<'_>) -> Opened {
        self.kick();
        let opened = self.session.open_xrcd(how, file);
        self.tell_end();
        opened
    }
}
