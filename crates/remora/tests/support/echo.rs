//! A kernel that is loaded, without a compiler: it answers with what it was called with.

use std::sync::Arc;
use std::time::Duration;

use remora_offload::kernel::{
    AsyncProgram, CallStatus, Context, LoadRefusal, Loadable, MemoryShare, ModuleLimits, Program,
    Tap,
};

/// What a module begins with that [`load`] takes.
const MAGIC: &[u8] = b"echo";

/// The module, loaded.
#[derive(Debug)]
pub(crate) struct Echo {
    bytes: Vec<u8>,
}

/// The module.
pub(crate) fn echo() -> Echo {
    Echo { bytes: MAGIC.to_vec() }
}

/// A loader that takes this module only, and a compiler's time for it.
pub(crate) fn load(
    bytes: &[u8],
    _: ModuleLimits,
    _: Option<Arc<MemoryShare>>,
) -> Result<Arc<dyn Loadable>, LoadRefusal> {
    std::thread::sleep(Duration::from_millis(1));
    if bytes == MAGIC { Ok(Arc::new(echo())) } else { Err("this is no echo".into()) }
}

async fn answer(call: Context) -> Result<(), CallStatus> {
    let params = call.params(|params| Ok(params.to_vec())).await?;
    call.output(|out| out.extend_from_slice(&params)).await
}

impl Loadable for Echo {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn limits(&self) -> ModuleLimits {
        ModuleLimits::default()
    }

    fn program(&self) -> Box<dyn Program> {
        Box::new(AsyncProgram::new(answer))
    }

    fn tap(&self, _: u64) -> Result<Box<dyn Tap>, LoadRefusal> {
        Err("an echo is bound to no stream".into())
    }
}
