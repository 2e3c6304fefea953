//! A client of a store, over the card.
//!
//! [`StoreClient`] polls, for programs that measure in microseconds. One call, one round trip; a
//! value that is longer than the client's buffer comes in pieces of one version.

use std::net::SocketAddr;

use remora::kernel::{CallFailure, CallStatus, KernelClient};
use remora::nic::Access;
use remora::{
    CompletionQueue, Connection, ConnectionParams, Device, MemoryRegion, ProtectionDomain,
    QueuePair, QueuePairOptions,
};
use thiserror::Error;

use crate::item::Item;
use crate::select::aggregate::Aggregation;
use crate::select::selection::{Output, Selection};
use crate::select::wire::WireError;
use crate::tablespace::TablespaceId;
use crate::way::call::{
    ANSWER_LEN, AnswerHead, BadCall, Call, Condition, EXPIRY_KEPT, Operation, Placement, Refused,
    VALUE_MAX,
};
use crate::way::chain::{ChainError, ChainReader};
use crate::way::connect::{ClientOptions, ConnectError};
use crate::way::hello::{Hello, Purpose, Welcome};
use crate::way::index::Index;
use crate::way::kernel::now_ms;
use crate::way::one_sided::{OneSided, OneSidedCounters, OneSidedError};

/// The most bytes of a call that travel as its parameters: with the header they fit the smallest
/// path MTU of 256 bytes.
const PARAMS_MAX: usize = 200;
/// How often a long value is read again that changes while it comes.
const TRIES: usize = 16;

/// One READ in so many goes by kernel instead, so that the store learns what is in use: it evicts
/// what is not, and READs leave no trace.
const SHOWN: u64 = 64;

/// Why a call has no result.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The store refuses.
    #[error("the store refuses: {0}")]
    Refused(#[from] Refused),
    /// The call failed on its way, or on the store's card.
    #[error(transparent)]
    Call(CallFailure),
    /// The key, the value or the predicate is longer than a call can be.
    #[error(transparent)]
    Bad(#[from] BadCall),
    /// The selection has no bytes.
    #[error(transparent)]
    Selection(#[from] WireError),
    /// A long value changed each time it was read.
    #[error("the value changed while it was read, {TRIES} times in a row; try again")]
    Changing,
    /// The store cannot be read one-sided.
    #[error(transparent)]
    OneSided(#[from] OneSidedError),
    /// The store cannot be read by a chain.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// There is no connection to a chain.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl From<CallFailure> for StoreError {
    fn from(failure: CallFailure) -> StoreError {
        match failure {
            CallFailure::Status(status) if Refused::of(status).is_some() => {
                Refused::of(status).map_or(StoreError::Call(failure), StoreError::Refused)
            }
            failure => StoreError::Call(failure),
        }
    }
}

/// What a scan has done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Scanned {
    /// Rows that the store has looked at.
    pub looked_at: u64,
    /// Rows that came.
    pub rows: u64,
}

/// What is known of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct About {
    /// Its version: each change of the key gives it a higher one.
    pub version: u64,
    /// The client's own flags.
    pub flags: u32,
    /// When it expires, in milliseconds of Unix time.
    pub expires_ms: Option<u64>,
}

impl About {
    fn of(head: &AnswerHead) -> About {
        let expires_ms = (head.expires_ms != 0).then_some(head.expires_ms);
        About { version: head.version, flags: head.flags, expires_ms }
    }
}

/// What a Put does beyond setting a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put<'a> {
    /// What has to hold.
    pub condition: Condition<'a>,
    /// Where the bytes go.
    pub placement: Placement,
    /// The client's own flags.
    pub flags: u32,
    /// When the key expires, in milliseconds of Unix time: 0 for as the tablespace has it by
    /// default; [`EXPIRY_KEPT`] for as it was.
    pub expires_ms: u64,
}

impl Default for Put<'_> {
    fn default() -> Self {
        let (condition, placement) = Default::default();
        Put { condition, placement, flags: 0, expires_ms: EXPIRY_KEPT }
    }
}

/// What readers are made of.
#[derive(Debug)]
struct Parts {
    device: Device,
    store: SocketAddr,
    options: ClientOptions,
    domain: ProtectionDomain,
    queue_pair: QueuePair,
    sends: CompletionQueue,
}

/// A client of a store.
#[derive(Debug)]
pub struct StoreClient {
    kernels: KernelClient,
    /// Where calls are put that are too long for parameters.
    staging: Option<MemoryRegion>,
    /// The bytes of a call.
    bytes: Vec<u8>,
    tablespace: u16,
    welcome: Welcome,
    /// READs of the store's memory, from the first on.
    reader: Option<OneSided>,
    reads: u64,
    /// A connection to a chain, from the first get by one on.
    chain: Option<ChainReader>,
    parts: Parts,
    // Last: dropping it disconnects.
    connection: Connection,
}

impl StoreClient {
    /// Connects to the store at `store`.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(
        device: &Device,
        store: SocketAddr,
        options: &ClientOptions,
    ) -> Result<StoreClient, ConnectError> {
        let domain = device.alloc_pd()?;
        let (sends, receives) = (device.create_cq(16)?, device.create_cq(16)?);
        let shape = QueuePairOptions::rc(&sends)
            .recv_cq(&receives)
            .send_depth(16)
            .recv_depth(16)
            .send_sges(2)
            .inline(128);
        let queue_pair =
            domain.create_qp(&shape).map_err(|error| ConnectError::QueuePair(error.to_string()))?;
        let params =
            ConnectionParams::new(device.info().mtu).access(Access::REMOTE_WRITE).kernels(true);
        let hello = Hello { purpose: Purpose::Calls, token: options.token };
        let connection = device
            .connect(queue_pair.clone(), store, &hello.to_bytes(), &params)
            .wait(options.timeout)
            .map_err(|source| ConnectError::Refused { store, source })?;
        let welcome = Welcome::parse(connection.private_data())?;
        let mut kernels =
            KernelClient::new(&domain, &queue_pair, &receives, 1, options.piece + ANSWER_LEN)?;
        kernels.timeout = options.timeout;
        let tablespace = options.tablespace;
        let (staging, bytes, reader, reads, chain) = (None, Vec::new(), None, 0, None);
        let (device, options) = (device.clone(), options.clone());
        let parts = Parts { device, store, options, domain, queue_pair, sends };
        Ok(StoreClient {
            kernels,
            staging,
            bytes,
            tablespace,
            welcome,
            reader,
            reads,
            chain,
            parts,
            connection,
        })
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The store's memory, as far as this client may read it.
    pub fn memory(&self) -> remora::Remote {
        self.welcome.memory
    }

    /// Reads a value; appends it to `out`. `None` if the key is not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<About>, StoreError> {
        self.get_if(key, Condition::None, out)
    }

    /// Reads a value if `condition` holds; `None` if it does not, or the key is not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn get_if(
        &mut self,
        key: &[u8],
        condition: Condition<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        let from = out.len();
        for _ in 0..TRIES {
            out.truncate(from);
            let mut call = Call { key, condition, ..Call::default() };
            let Some(first) = self.read_piece(&call, out)? else { return Ok(None) };
            // Later pieces belong to the value that passed, or it is read anew.
            call.condition = Condition::Version(first.version);
            let whole = from + first.value_len as usize;
            while out.len() < whole {
                call.argument = (out.len() - from) as u64;
                match self.read_piece(&call, out)? {
                    Some(_) if out.len() as u64 > from as u64 + call.argument => {}
                    _ => break,
                }
            }
            if out.len() == whole {
                return Ok(Some(About::of(&first)));
            }
        }
        out.truncate(from);
        Err(StoreError::Changing)
    }

    /// Reads a value one-sided: without a kernel, by READs of the store's memory. One round trip
    /// where this client knows the location, two where it has to look for it. What cannot be read
    /// so, and one read in 64, comes by a kernel.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn get_one_sided(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        self.reads += 1;
        if self.reads.is_multiple_of(SHOWN) {
            return self.get(key, out);
        }
        let space = TablespaceId(self.tablespace);
        let found = self.reader()?.get(space, key, now_ms(), |item| take(item, out))?;
        match found.flatten() {
            None => self.get(key, out),
            found => Ok(found),
        }
    }

    /// Reads a value by a chain: by work requests on the store's card, while its processor sleeps.
    /// What cannot be read so comes by a kernel.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn get_by_chain(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        let space = TablespaceId(self.tablespace);
        if self.chain.is_none() {
            let index = self.index()?;
            let Parts { device, store, options, .. } = &self.parts;
            self.chain = Some(ChainReader::connect(device, *store, index, options)?);
        }
        let chain = self.chain.as_mut().ok_or(StoreError::OneSided(OneSidedError::Layout))?;
        let found = chain.get(space, key, now_ms(), |item| take(item, out))?.flatten();
        if found.is_some() {
            return Ok(found);
        }
        let found = self.get(key, out)?;
        if found.is_some() {
            // It is in the stash, or its partition has grown.
            let index = self.index()?;
            if let Some(chain) = &mut self.chain {
                chain.set_index(index);
            }
        }
        Ok(found)
    }

    /// How often each way of reading one-sided was taken.
    pub fn one_sided_counters(&self) -> OneSidedCounters {
        self.reader.as_ref().map(OneSided::counters).unwrap_or_default()
    }

    /// What the store says of its index.
    fn index(&mut self) -> Result<Index, StoreError> {
        let mut answer = Vec::new();
        self.call(Operation::Describe, &Call::default(), &mut answer)?;
        let index = answer.get(ANSWER_LEN..).and_then(Index::parse);
        index.ok_or(StoreError::OneSided(OneSidedError::Layout))
    }

    fn reader(&mut self) -> Result<&mut OneSided, StoreError> {
        if self.reader.is_none() {
            let known = (self.welcome.memory, self.index()?);
            let Parts { domain, queue_pair, sends, options, .. } = &self.parts;
            let (queue_pair, sends) = (queue_pair.clone(), sends.clone());
            let ClientOptions { locations, timeout, .. } = *options;
            let made = OneSided::new(domain, queue_pair, sends, known, locations, timeout)?;
            self.reader = Some(made);
        }
        self.reader.as_mut().ok_or(StoreError::OneSided(OneSidedError::Layout))
    }

    /// Reads from byte `argument` of a value on, as much as comes with one call.
    fn read_piece(
        &mut self,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<AnswerHead>, StoreError> {
        let from = out.len();
        match self.call(Operation::Get, call, out) {
            Ok(head) => {
                out.drain(from..from + ANSWER_LEN);
                Ok(Some(head))
            }
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets a value. Returns its version.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64, StoreError> {
        let set = self.put_with(key, value, &Put { expires_ms: 0, ..Put::default() })?;
        set.ok_or(StoreError::Refused(Refused::Condition))
    }

    /// Changes a value as `how` says. Returns its new version; `None` if the condition does not
    /// hold.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn put_with(
        &mut self,
        key: &[u8],
        value: &[u8],
        how: &Put<'_>,
    ) -> Result<Option<u64>, StoreError> {
        let &Put { condition, placement, flags, expires_ms } = how;
        let call = Call { key, value, condition, placement, flags, expires_ms, ..Call::default() };
        self.change(Operation::Put, &call)
    }

    /// Removes a key; `false` if it is not there, or the condition does not hold.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn delete_if(&mut self, key: &[u8], condition: Condition<'_>) -> Result<bool, StoreError> {
        let call = Call { key, condition, ..Call::default() };
        Ok(self.change(Operation::Delete, &call)?.is_some())
    }

    /// Removes a key; `false` if it is not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        self.delete_if(key, Condition::None)
    }

    /// Changes when a key expires, in milliseconds of Unix time; 0 for never. `false` if the key is
    /// not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn touch(&mut self, key: &[u8], expires_ms: u64) -> Result<bool, StoreError> {
        let call = Call { key, expires_ms, ..Call::default() };
        Ok(self.change(Operation::Touch, &call)?.is_some())
    }

    /// Adds to a value that is a decimal number, or sets it if the key is not there. Returns the
    /// sum.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn count(&mut self, key: &[u8], add: i64) -> Result<i64, StoreError> {
        let argument = add.cast_unsigned();
        let call = Call { key, argument, expires_ms: EXPIRY_KEPT, ..Call::default() };
        let mut answer = Vec::new();
        self.call(Operation::Count, &call, &mut answer)?;
        let digits = answer.get(ANSWER_LEN..).unwrap_or_default();
        let sum = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
        sum.ok_or(StoreError::Call(CallFailure::Answer))
    }

    /// Walks over the tablespace, and calls `each` with key and value of every row, or with what
    /// `selection` wants of those that it selects. Returns what was done.
    ///
    /// Rows that are there from the beginning to the end come exactly once.
    ///
    /// # Errors
    /// See [`StoreError`]. A row that is longer than this client's buffer is an error, too: see
    /// [`ClientOptions::piece`].
    pub fn scan(
        &mut self,
        selection: Option<&Selection>,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<Scanned, StoreError> {
        let plan = selection.map(Selection::to_bytes).transpose()?.unwrap_or_default();
        let mut left = selection.map_or(u64::MAX, |selection| selection.limit);
        let (mut done, mut cursor) = (Scanned::default(), 0);
        let mut answer = Vec::new();
        while left > 0 {
            let limit = u32::try_from(left).unwrap_or(0);
            let call = Call { value: &plan, argument: cursor, limit, ..Call::default() };
            answer.clear();
            let head = self.call(Operation::Scan, &call, &mut answer)?;
            let rows = rows(&answer[ANSWER_LEN..], head.value_len, &mut each);
            rows.ok_or(StoreError::Call(CallFailure::Answer))?;
            done.looked_at += u64::from(head.flags);
            done.rows += u64::from(head.value_len);
            left = left.saturating_sub(head.value_len.into());
            cursor = head.version;
            if cursor == 0 {
                break;
            }
        }
        Ok(done)
    }

    /// Computes the aggregates of a selection over the rows that it selects: only answers travel.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn aggregate(&mut self, selection: &Selection) -> Result<Aggregation, StoreError> {
        let Output::Aggregates(wanted) = &selection.output else {
            return Err(StoreError::Refused(Refused::Predicate));
        };
        let (mut all, plan, mut cursor) = (Aggregation::new(wanted), selection.to_bytes()?, 0);
        let mut answer = Vec::new();
        loop {
            let call = Call { value: &plan, argument: cursor, ..Call::default() };
            answer.clear();
            let head = self.call(Operation::Scan, &call, &mut answer)?;
            let merged = all.merge(&answer[ANSWER_LEN..]);
            merged.map_err(|_| StoreError::Call(CallFailure::Answer))?;
            cursor = head.version;
            if cursor == 0 {
                return Ok(all);
            }
        }
    }

    /// Removes all keys of the tablespace.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.change(Operation::Flush, &Call::default()).map(drop)
    }

    /// Calls a change; `None` if the key is not there, or the condition does not hold.
    fn change(&mut self, operation: Operation, call: &Call<'_>) -> Result<Option<u64>, StoreError> {
        let mut answer = Vec::new();
        match self.call(operation, call, &mut answer) {
            Ok(head) => Ok(Some(head.version)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Calls; appends the answer to `out`, and returns its head.
    pub(crate) fn call(
        &mut self,
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<AnswerHead, StoreError> {
        self.bytes.clear();
        let call = Call { tablespace: self.tablespace, ..*call };
        call.write(&mut self.bytes)?;
        let from = out.len();
        if self.bytes.len() <= PARAMS_MAX {
            self.kernels.call(operation.opcode(), &self.bytes, out)?;
        } else {
            let payload = self.stage()?;
            self.kernels.call_with(operation.opcode(), &[], payload, out)?;
        }
        let head = AnswerHead::parse(&out[from..]).map(|(head, _)| head);
        head.ok_or(StoreError::Call(CallFailure::Answer))
    }

    /// Puts the call's bytes into registered memory.
    fn stage(&mut self) -> Result<remora::nic::queue::Sge, StoreError> {
        let len = self.bytes.len();
        let fits = self.staging.as_ref().is_some_and(|region| region.len() >= len as u64);
        if !fits {
            let domain = self.kernels.region().domain().clone();
            let made = domain.alloc(len.next_power_of_two(), Access::LOCAL_WRITE);
            self.staging = Some(made.map_err(|_| CallFailure::Status(CallStatus::MEMORY))?);
        }
        let region = self.staging.as_ref().ok_or(CallFailure::Answer)?;
        region.write_at(0, &self.bytes).map_err(CallFailure::Room)?;
        Ok(region.sge(0, len as u32))
    }
}

/// Calls `each` with key and value of each row of an answer; `None` if the bytes are no such rows.
fn rows(mut bytes: &[u8], count: u32, each: &mut impl FnMut(&[u8], &[u8])) -> Option<()> {
    for _ in 0..count {
        let (lengths, rest) = bytes.split_first_chunk::<8>()?;
        let [key, value] =
            [0, 4].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| lengths[at + i])) as usize);
        let (key, rest) = rest.split_at_checked(key)?;
        let (value, rest) = rest.split_at_checked(value)?;
        each(key, value);
        bytes = rest;
    }
    bytes.is_empty().then_some(())
}

/// Appends an item's value to `out`; `None` if it is stored in a form that cannot be read.
fn take(item: &Item<'_>, out: &mut Vec<u8>) -> Option<About> {
    let &Item { version, flags, expires_ms, .. } = item;
    let decoded = item.codec.decode(item.stored, VALUE_MAX, out);
    decoded.is_ok().then_some(About { version, flags, expires_ms })
}

fn is_absent(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Call(CallFailure::Status(CallStatus::NOT_FOUND))
            | StoreError::Refused(Refused::Condition)
    )
}
