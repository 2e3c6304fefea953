//! A client whose requests somebody else carries: a simulated world, in which the code of live
//! clients runs as it is.

use remora::Remote;
use remora::kernel::CallFailure;

use super::error::StoreError;
use super::operations::{self, About, Caller, Put};
use crate::memory::Heap;
use crate::tablespace::TablespaceId;
use crate::way::call::{Call, Condition, Operation};
use crate::way::chain::{Asks, ChainError, ChainReader};
pub use crate::way::one_sided::Piece;
use crate::way::one_sided::{LANDING_LEN, OneSided, OneSidedError, Reads};

/// How many locations such a client keeps.
const LOCATIONS: usize = 64;

/// Carries a client's requests, one at a time. Clones are handles of one connection.
#[expect(async_fn_in_trait, reason = "worlds have one thread: no future has to be Send")]
pub trait Carrier: Clone {
    /// Calls a kernel of the store's card with these bytes; appends its results to `answer`.
    ///
    /// # Errors
    /// The kernel's status, or that the connection broke.
    async fn call(
        &self,
        opcode: u64,
        bytes: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<(), CallFailure>;

    /// READs pieces of the store's memory into `landing`, in this order.
    ///
    /// # Errors
    /// The connection broke.
    async fn read(&self, pieces: &[Piece], landing: &Heap) -> Result<(), OneSidedError>;

    /// Sends a message to the store's chain; its answer takes the place of what is in `answer`.
    ///
    /// # Errors
    /// The connection broke.
    async fn ask(&self, message: &[u8], answer: &mut Vec<u8>) -> Result<(), ChainError>;
}

/// A client of a store over a [`Carrier`]. Its operations are those of
/// [`AsyncStoreClient`](super::AsyncStoreClient).
pub struct CarriedClient<C: Carrier> {
    calls: Calls<C>,
    memory: Remote,
    reader: Option<OneSided<Carried<C>>>,
    reads: u64,
    chain: Option<ChainReader<Carried<C>>>,
}

/// Calls about a tablespace.
struct Calls<C> {
    carrier: C,
    tablespace: TablespaceId,
    clock_ms: Box<dyn Fn() -> u64>,
}

/// READs, and messages to a chain.
struct Carried<C>(C);

impl<C: Carrier> Caller for Calls<C> {
    async fn call(
        &mut self,
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let mut bytes = Vec::with_capacity(call.len());
        Call { tablespace: self.tablespace.0, ..*call }.write(&mut bytes)?;
        Ok(self.carrier.call(operation.opcode(), &bytes, out).await?)
    }

    fn tablespace(&self) -> TablespaceId {
        self.tablespace
    }

    fn clock_ms(&self) -> u64 {
        (self.clock_ms)()
    }
}

impl<C: Carrier> Reads for Carried<C> {
    type Landing = Heap;

    async fn read(
        &mut self,
        _: Remote,
        landing: &Heap,
        pieces: &[Piece],
    ) -> Result<(), OneSidedError> {
        self.0.read(pieces, landing).await
    }
}

impl<C: Carrier> Asks for Carried<C> {
    async fn ask(&mut self, message: &[u8], answer: &mut Vec<u8>) -> Result<(), ChainError> {
        self.0.ask(message, answer).await
    }
}

impl<C: Carrier> CarriedClient<C> {
    /// A client of the store with this memory, about one of its tablespaces, with a clock of its
    /// own, in milliseconds from anywhere on.
    pub fn new(
        carrier: C,
        memory: Remote,
        tablespace: TablespaceId,
        clock_ms: impl Fn() -> u64 + 'static,
    ) -> CarriedClient<C> {
        let calls = Calls { carrier, tablespace, clock_ms: Box::new(clock_ms) };
        CarriedClient { calls, memory, reader: None, reads: 0, chain: None }
    }

    /// Reads a value by a kernel: see [`StoreClient::get`](super::StoreClient::get).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn get(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        operations::get_if(&mut self.calls, key, Condition::None, out).await
    }

    /// Reads a value one-sided: see
    /// [`StoreClient::get_one_sided`](super::StoreClient::get_one_sided).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn get_one_sided(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        let calls = &mut self.calls;
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                let known = (self.memory, operations::index(calls).await?);
                let reads = (Carried(calls.carrier.clone()), Heap::new(LANDING_LEN as u64));
                none.insert(OneSided::new(reads, known, LOCATIONS))
            }
        };
        operations::get_one_sided(calls, reader, &mut self.reads, key, out).await
    }

    /// Reads a value by a chain: see [`StoreClient::get_by_chain`](super::StoreClient::get_by_chain).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn get_by_chain(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        let calls = &mut self.calls;
        let chain = match &mut self.chain {
            Some(chain) => chain,
            none => {
                let index = operations::index(calls).await?;
                none.insert(ChainReader::new(Carried(calls.carrier.clone()), index))
            }
        };
        operations::get_by_chain(calls, chain, key, out).await
    }

    /// Sets a value. Returns its version.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64, StoreError> {
        operations::put(&mut self.calls, key, value).await
    }

    /// Changes a value as `how` says: see [`StoreClient::put_with`](super::StoreClient::put_with).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn put_with(
        &mut self,
        key: &[u8],
        value: &[u8],
        how: &Put<'_>,
    ) -> Result<Option<u64>, StoreError> {
        operations::put_with(&mut self.calls, key, value, how).await
    }

    /// Removes a key; `false` if it is not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        operations::delete_if(&mut self.calls, key, Condition::None).await
    }

    /// Gives a key another expiry; `false` if it is not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn touch(&mut self, key: &[u8], expires_ms: u64) -> Result<bool, StoreError> {
        operations::touch(&mut self.calls, key, expires_ms).await
    }

    /// Adds to a counter: see [`StoreClient::count`](super::StoreClient::count).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn count(&mut self, key: &[u8], add: i64) -> Result<i64, StoreError> {
        operations::count(&mut self.calls, key, add).await
    }

    /// Removes all keys of the tablespace.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn flush(&mut self) -> Result<(), StoreError> {
        operations::flush(&mut self.calls).await
    }
}
