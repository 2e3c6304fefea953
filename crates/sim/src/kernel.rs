//! Kernels in a simulation: a pair whose second host runs kernels, and calls by the first host.

use remora_nic::kernel::{CallStatus, HEADER_LEN, Header, Notify, STATUS_WORD_LEN, StatusWord};
use remora_nic::queue::{Data, SendFlags, SendOp, Sge};
use remora_nic::wire::Dialect;
use remora_offload::kernel::{
    AsyncProgram, Context, DeployError, Deployment, Executor, ExecutorLimits, Grant, Program,
    Timing,
};

use crate::hardware::{HostPort, PortTerms};
use crate::pair::{A, B, Pair, PairOptions};

/// The offset in A's region at which calls are put together.
pub const CALL: u64 = 0;
/// The offset in A's region that results go to.
pub const RESULT: u64 = 256 << 10;
/// The offset in A's region that status words go to.
pub const WORD: u64 = 1000 << 10;

/// A pair of hosts that use StRoM's op-codes. B runs kernels, whose accesses to memory pass a port
/// with these terms, or take no time.
///
/// # Panics
/// If a card refuses a valid request.
pub fn kernel_pair(
    mut options: PairOptions,
    limits: ExecutorLimits,
    port: Option<PortTerms>,
) -> Pair {
    options.connect.dialect |= Dialect::KERNELS;
    let mut pair = Pair::new(&options);
    for host in &mut pair.world.hosts {
        let mut kernels = Executor::new(limits);
        kernels.set_timing(port.map(timing));
        host.nic.set_kernels(Box::new(kernels));
    }
    pair
}

/// A port with these terms, for a card's kernels.
pub fn timing(terms: PortTerms) -> Box<dyn Timing> {
    Box::new(HostPort::new(terms))
}

impl Pair {
    /// Calls `act` with the executor of host `of`.
    ///
    /// # Panics
    /// If [`kernel_pair`] did not create the pair.
    pub fn kernels<R>(
        &mut self,
        of: usize,
        act: impl FnOnce(&mut Executor, &mut remora_nic::kernel::KernelIo<'_>) -> R,
    ) -> R {
        let now = self.world.now;
        let crate::world::Host { nic, memory, .. } = &mut self.world.hosts[of];
        nic.with_kernels(now, memory, act).expect("the card has kernels")
    }

    /// Deploys an `async fn` at host `of`, with a grant for that host's region.
    ///
    /// # Errors
    /// See [`DeployError`].
    pub fn deploy<F, Fut>(&mut self, of: usize, opcode: u64, make: F) -> Result<(), DeployError>
    where
        F: FnMut(Context) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), CallStatus>> + Send + 'static,
    {
        self.deploy_program(of, opcode, Box::new(AsyncProgram::new(make)))
    }

    /// Deploys a program at host `of`, with a grant for that host's region.
    ///
    /// # Errors
    /// See [`DeployError`].
    pub fn deploy_program(
        &mut self,
        of: usize,
        opcode: u64,
        program: Box<dyn Program>,
    ) -> Result<(), DeployError> {
        let grants = vec![Grant { key: self.regions[of].key, write: true }];
        let deployment = Deployment::new("test", grants);
        self.kernels(of, |kernels, _| kernels.deploy(opcode, deployment, program))
    }

    /// The header of a call by A whose results go to [`RESULT`] and whose status word goes to
    /// [`WORD`].
    pub fn header(&self, params: &[u8], max_len: u32, cookie: u64) -> Header {
        let (to, word) = (self.remote(A, RESULT), self.remote(A, WORD + cookie * 16));
        let (notify, params_len) = (Notify::Word(word), params.len() as u16);
        Header { notify, local: false, params_len, to, max_len, cookie }
    }

    /// Posts an RPC at A; returns the `wr_id`.
    pub fn call(&mut self, opcode: u64, header: &Header, params: &[u8]) -> u64 {
        self.post_call(SendOp::Rpc { opcode }, header, params, &[])
    }

    /// Posts an RPC WRITE at A; returns the `wr_id`.
    pub fn call_with(
        &mut self,
        opcode: u64,
        header: &Header,
        params: &[u8],
        payload: &[u8],
    ) -> u64 {
        self.post_call(SendOp::RpcWrite { opcode }, header, params, payload)
    }

    fn post_call(&mut self, op: SendOp, header: &Header, params: &[u8], payload: &[u8]) -> u64 {
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend_from_slice(params);
        bytes.extend_from_slice(payload);
        let at = CALL + header.cookie * 4096;
        self.set(A, at, &bytes);
        if let Notify::Word(_) = header.notify {
            self.set(A, WORD + header.cookie * 16, &[0; STATUS_WORD_LEN]);
        }
        debug_assert!(bytes.len() >= HEADER_LEN);
        let sges: [Sge; 1] = [self.sge(A, at, bytes.len() as u32)];
        self.post(A, op, Data::Sges(&sges), SendFlags::SIGNALED)
    }

    /// The status word of the call with this cookie, if it has ended.
    ///
    /// # Panics
    /// Never: as many bytes are read as a status word has.
    pub fn status(&self, cookie: u64) -> Option<StatusWord> {
        let bytes = self.bytes(A, WORD + cookie * 16, STATUS_WORD_LEN as u64);
        StatusWord::parse(&bytes.try_into().expect("as many as were asked for"))
    }

    /// Calls a kernel, runs the world until it is quiet, and returns the status and the results.
    pub fn call_and_wait(
        &mut self,
        opcode: u64,
        params: &[u8],
        payload: &[u8],
        max_len: u32,
    ) -> (Option<CallStatus>, Vec<u8>) {
        let header = self.header(params, max_len, 0);
        if payload.is_empty() {
            self.call(opcode, &header, params);
        } else {
            self.call_with(opcode, &header, params, payload);
        }
        self.run();
        let word = self.status(0);
        let len = word.map_or(0, |word| word.len);
        (word.map(|word| word.status), self.bytes(A, RESULT, len.into()))
    }

    /// The value of B's counter `name`.
    ///
    /// # Panics
    /// If there is no counter with that name.
    pub fn counted(&self, name: &str) -> u64 {
        let counters = self.world.hosts[B].nic.counters();
        counters.iter().find(|(n, ..)| *n == name).expect("a counter's name").1
    }
}
