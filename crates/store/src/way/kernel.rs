//! The store's kernels: each operation under an op-code of its own, in one round trip and without
//! the application of the node.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use remora::Device;
use remora::kernel::{CallStatus, Context, DeployError, Deployment};

use super::call::{Call, HEAD_LEN, Operation};
use super::execute::execute;
use crate::journal::Journal;
use crate::memory::Memory;
use crate::store::Store;

/// The most bytes of a call that is looked at where it came, without a copy in memory of its own.
const SHORT: usize = 512;
/// The longest answer of a kernel, in bytes.
const ANSWER_MAX: usize = 1 << 20;
/// How long a kernel waits before it looks again whether a change is durable.
const DURABLE_LOOK: Duration = Duration::from_micros(20);

/// A store that kernels serve.
pub trait Served: Send + Sync + 'static {
    /// Carries out a call: see [`execute`].
    ///
    /// # Errors
    /// The status that the client gets.
    fn execute(
        &self,
        operation: Operation,
        bytes: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<u64, CallStatus>;

    /// Is the log's position durable, so that an answer may leave that depends on it?
    ///
    /// # Errors
    /// It will not be, since the log cannot be written.
    fn is_durable(&self, position: u64) -> Result<bool, CallStatus>;
}

/// A store without a log, or one whose answers do not wait for it.
impl<M: Memory + 'static, J: Journal + 'static> Served for Store<M, J> {
    fn execute(
        &self,
        operation: Operation,
        bytes: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<u64, CallStatus> {
        execute(self, operation, bytes, now_ms(), room, out)
    }

    fn is_durable(&self, _: u64) -> Result<bool, CallStatus> {
        Ok(true)
    }
}

/// Milliseconds of Unix time, now.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

/// Deploys a kernel for each operation.
///
/// # Errors
/// An op-code is taken, or the card has no room. Kernels that were deployed stay.
pub fn deploy(device: &Device, store: &Arc<impl Served>) -> Result<(), DeployError> {
    for operation in Operation::ALL {
        let store = store.clone();
        let deployment = Deployment::new(format!("store {}", operation.name()), []);
        device.deploy(operation.opcode(), deployment, move |context| {
            serve(store.clone(), operation, context)
        })?;
    }
    Ok(())
}

/// Ends the kernels. A kernel holds the store, whose memory holds the device: until they are ended,
/// neither goes.
pub fn undeploy(device: &Device) {
    for operation in Operation::ALL {
        // One that was not deployed need not be ended.
        _ = device.undeploy(operation.opcode());
    }
}

async fn serve(
    store: Arc<impl Served>,
    operation: Operation,
    context: Context,
) -> Result<(), CallStatus> {
    let mut short = [0; SHORT];
    let len = context.params(|params| {
        let room = short.get_mut(..params.len()).ok_or(CallStatus::BAD_PARAMS)?;
        room.copy_from_slice(params);
        Ok(params.len())
    });
    let position = match len.await? {
        0 => {
            let long = gather(&context).await?;
            answer(&*store, operation, &context, &long).await?
        }
        len => answer(&*store, operation, &context, &short[..len]).await?,
    };
    while position != 0 && !store.is_durable(position)? {
        context.pause(DURABLE_LOOK).await?;
    }
    Ok(())
}

/// The bytes of a call that came as payload.
async fn gather(context: &Context) -> Result<Vec<u8>, CallStatus> {
    let (mut bytes, mut whole) = (Vec::new(), None);
    loop {
        let piece = context.payload(|piece, _| {
            bytes.extend_from_slice(piece);
            if whole.is_none() && bytes.len() >= HEAD_LEN {
                let lengths = Call::lengths(&bytes).map_err(|_| CallStatus::BAD_PARAMS)?;
                whole = Some(HEAD_LEN + lengths.iter().sum::<usize>());
            }
            // What is longer than it says is refused before it takes room.
            let fits = whole.is_none_or(|whole| bytes.len() <= whole);
            if fits { Ok(()) } else { Err(CallStatus::BAD_PARAMS) }
        });
        match piece.await? {
            Some(taken) => taken?,
            None => return Ok(bytes),
        }
    }
}

/// Carries out the call, with the answer in the kernel's results.
async fn answer(
    store: &impl Served,
    operation: Operation,
    context: &Context,
    bytes: &[u8],
) -> Result<u64, CallStatus> {
    let room = (context.max_len() as usize).min(ANSWER_MAX);
    context.output(|out| store.execute(operation, bytes, room, out)).await?
}
