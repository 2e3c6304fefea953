//! Devices that several processes use: by a descriptor that one passes to another, and by fork.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use remora_nic::Xrcd;
use thiserror::Error;

pub use crate::attach::fork::Forking;
use crate::attach::{AttachError, Attached, Begun, Ways};
use crate::device::{Device, OpenError};
use crate::either::Driver;
use crate::memory::memfd;
use crate::message::{Letter, OpenXrcd, XrcdError, decode, encode};
use crate::raw::LockedCard;

/// The longest letter, in bytes.
const LETTER_MAX: usize = 64;
/// How long a fork waits for a card. Other threads have it only briefly.
const AT_FORK: Duration = Duration::from_millis(100);

/// Whose device a descriptor stands for.
#[derive(Debug)]
pub enum Imported {
    /// The one that was asked.
    Same,
    /// Another process's, as a guest: its objects can be used, and it has no events.
    Guest(Device),
}

/// Why a descriptor leads to no device.
#[derive(Debug, Error)]
pub enum ImportError {
    /// It was not made by [`Device::letter`].
    #[error("the descriptor is none that stands for an open device: {0}")]
    Foreign(io::Error),
    /// The device has a card in its process.
    #[error(
        "the device is a card of another process, which no process can share: start a card for \
         both (remora nic)"
    )]
    Embedded,
    /// The device is of another card than this one.
    #[error(
        "the device is one of another daemon’s card: start both programs with the same REMORA_NIC"
    )]
    OtherCard,
    /// The card's process refuses, or has ended.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl Device {
    /// A descriptor that stands for this device in other processes of the user, to which it may be
    /// passed over a Unix socket: see [`Device::import`].
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn letter(&self) -> io::Result<OwnedFd> {
        let letter = self.own_letter();
        memfd::constant("remora-device", &encode(&letter))
    }

    fn own_letter(&self) -> Letter {
        let guid = self.limits().cm.ca_guid;
        match &*self.live.lock() {
            Driver::Own(_) => Letter::Card(guid),
            Driver::Attached(attached) => Letter::Session(attached.join(), guid),
        }
    }

    /// The device that a descriptor stands for: this one, or another one of the same card's
    /// process. The process that reads must use that card, too.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import(&self, letter: BorrowedFd<'_>) -> Result<Imported, ImportError> {
        let bytes = memfd::read_constant(letter, LETTER_MAX).map_err(ImportError::Foreign)?;
        let invalid = |_| ImportError::Foreign(io::ErrorKind::InvalidData.into());
        let letter: Letter = decode(&bytes).map_err(invalid)?;
        if letter == self.own_letter() {
            return Ok(Imported::Same);
        }
        let own = self.limits().cm.ca_guid;
        let begun = match (&*self.live.lock(), letter) {
            (Driver::Attached(_), Letter::Session(_, guid)) if guid != own => {
                return Err(ImportError::OtherCard);
            }
            (Driver::Attached(host), Letter::Session(join, _)) => Begun::guest(host, join),
            _ => return Err(ImportError::Embedded),
        };
        let ways = Ways::from_environment().map_err(OpenError::from)?;
        let device =
            Device::of_session(begun.map_err(OpenError::from)?, ways, Attached::into_guest);
        Ok(Imported::Guest(device?))
    }

    /// Is another process stopped in the middle of a WRITE past the daemon to memory of this one,
    /// whose queue pair or key has ended since? It may write some bytes more when it goes on. (For
    /// a second, the end waits for such a process.) Of a card of this process nobody is.
    pub fn has_stopped_writer(&self) -> bool {
        matches!(&*self.live.lock(), Driver::Attached(attached) if attached.has_stopped_writer())
    }

    /// Is this device a guest, which has no events?
    pub fn is_guest(&self) -> bool {
        matches!(&*self.live.lock(), Driver::Attached(attached) if attached.is_guest())
    }

    /// Before a fork: locks the driver, so that the child finds it whole. `None` if no forked child
    /// can use the device, or a thread has it for long. Drop the guard in both processes.
    ///
    /// # Safety
    /// As for [`Device::card`].
    pub unsafe fn before_fork(&self) -> Option<LockedCard<'_>> {
        let start = Instant::now();
        loop {
            // SAFETY: by promise of the caller.
            match unsafe { self.try_card() } {
                Some(card) => return card.is_attached().then_some(card),
                None if start.elapsed() >= AT_FORK => return None,
                None => std::thread::yield_now(),
            }
        }
    }

    /// In a forked child, before the first other use of a device for which [`Device::before_fork`]
    /// was called: makes it a guest of the parent's session.
    ///
    /// # Errors
    /// The parent's session has ended, or the card is in the parent.
    pub fn after_fork(&self) -> Result<(), AttachError> {
        match &mut *self.live.lock() {
            Driver::Attached(attached) => attached.fork(),
            Driver::Own(_) => Err(AttachError::Refused(
                "a card in the parent’s process cannot be used by its child".into(),
            )),
        }
    }

    /// Ends the use of another process's device ([`Imported::Guest`]), on which nothing is left to
    /// be done.
    pub fn hang_up(&self) {
        if let Driver::Attached(attached) = &mut *self.live.lock() {
            attached.hang_up();
        }
        self.live.background.stop.store(true, Ordering::Release);
        self.live.background.wake();
    }
}

impl LockedCard<'_> {
    /// Opens the XRC domain that a file names: for all programs of the user on the card of another
    /// process. On a card of this process each call makes a domain, since nobody shares it.
    ///
    /// # Errors
    /// See [`XrcdError`].
    pub fn open_xrcd(&mut self, how: OpenXrcd, file: BorrowedFd<'_>) -> Result<Xrcd, XrcdError> {
        match self.driver() {
            Driver::Own(own) => own.nic.alloc_xrcd().map_err(|_| XrcdError::Full),
            Driver::Attached(attached) => attached.open_xrcd(how, file),
        }
    }
}
