//! What a client asks of the DMA engine of a daemon's card.

use serde::{Deserialize, Serialize};

use super::Loan;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DmaRequest {
    /// Opens the card's memory, which the user's first request makes. Answer: [`DmaAnswer::Card`],
    /// with two descriptors: the memory's file, and the engine's doorbell for this client. All
    /// others come behind this one.
    Open,
    /// Grants the engine memory. All but [`Loan::Process`] come with a descriptor. Answer:
    /// [`DmaAnswer::Region`].
    Grant {
        /// How the engine reaches it.
        loan: Loan,
        /// Where it begins in the process, for those loans that are of a process.
        addr: u64,
        /// Its bytes.
        len: u64,
        /// The engine may write it.
        writable: bool,
    },
    /// Takes a grant back. Answer: [`DmaAnswer::Done`].
    Revoke(u16),
    /// Opens a channel. Answer: [`DmaAnswer::Channel`], with the ring's descriptor, and for
    /// channels with interrupts the reading end of the pipe by which the client is woken.
    Channel {
        /// Card to host, and not host to card.
        to_host: bool,
        /// The number of the stream at the card's end.
        stream: Option<u16>,
        /// Completions wake a sleeper.
        interrupt: bool,
        /// Descriptors of the ring.
        depth: u32,
    },
    /// Closes a channel. Answer: [`DmaAnswer::Done`].
    Close(u32),
    /// Asks for card memory that no other program has. Answer: [`DmaAnswer::Piece`].
    Alloc {
        /// Near memory, and not far.
        near: bool,
        /// Bytes.
        len: u64,
    },
    /// Gives a piece back, by its first card address. Answer: [`DmaAnswer::Done`].
    Free(u64),
    /// The channels of all clients of this user from this place on. Answer:
    /// [`DmaAnswer::Channels`].
    List(u32),
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DmaAnswer {
    /// How many bytes the card has of each kind.
    Card {
        /// Near memory.
        near: u64,
        /// Far memory.
        far: u64,
    },
    /// The region's number.
    Region(u16),
    /// The channel's number.
    Channel(u32),
    /// A piece of card memory.
    Piece {
        /// The card address of its first byte.
        address: u64,
        /// Its bytes, which may be more than were asked for.
        len: u64,
    },
    /// Some of the channels, and what the engine has counted.
    Channels {
        /// The channels, by their places.
        channels: Vec<DmaChannelRow>,
        /// There are others behind them.
        more: bool,
        /// Names and values.
        counters: Vec<(String, u64)>,
    },
    /// It is done.
    Done,
}

/// A channel of a daemon's engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DmaChannelRow {
    /// Its place in the engine.
    pub place: u32,
    /// The process that has opened it.
    pub pid: i32,
    /// Card to host, and not host to card.
    pub to_host: bool,
    /// The number of the stream at the card's end.
    pub stream: Option<u16>,
    /// Completions wake a sleeper.
    pub interrupt: bool,
    /// Descriptors of its ring.
    pub depth: u32,
    /// Descriptors that have ended.
    pub completed: u64,
    /// Why it is served no more.
    pub halted: Option<String>,
}

/// A program that uses the card's memory, and what it has there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DmaClientStatus {
    /// The number of its connection.
    pub connection: u32,
    /// The user's number.
    pub uid: u32,
    /// The process.
    pub pid: i32,
    /// Regions of its memory that the engine may reach.
    pub regions: u32,
    /// Bytes of those that count for its quota: memory files and files.
    pub granted_bytes: u64,
    /// Pieces of card memory that it has for itself.
    pub pieces: u32,
    /// Bytes of these.
    pub card_bytes: u64,
    /// Its channels; `None` while the engine makes a call for memory of some program, which takes
    /// as long as that likes.
    pub channels: Option<Vec<DmaChannelRow>>,
}
