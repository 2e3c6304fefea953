//! What is known of a module before it is compiled: that it is valid, that the card offers its
//! instructions, and that a node can afford to compile it.
//!
//! The time that compiling takes grows faster than the code: where control flow branches or meets,
//! the compiler looks at every value that is alive. So an instruction costs one, and a place of
//! control flow also as much as the function has locals and operands there. What compilers emit
//! stays far below the limit; a module that is made to take minutes does not.

use std::collections::BTreeSet;

use wasmparser::types::Types;
use wasmparser::{
    BinaryReaderError, FuncToValidate, FuncValidatorAllocations, FunctionBody, Operator, Parser,
    ValidPayload, Validator, ValidatorResources, WasmFeatures,
};

use super::bulk::{Bulk, Counted};
use super::error::LoadError;
use super::limits::{COMPILE_MAX, FUNCTION_COST};

/// Examines a module. Returns what is needed to count its bulk instructions, if it has any.
///
/// # Errors
/// The module is not valid, has an instruction that is not offered, or takes too long to compile.
pub(super) fn survey(module: &[u8]) -> Result<Option<Counted>, LoadError> {
    let mut validator = Validator::new_with_features(features());
    let mut survey = Survey::default();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.map_err(invalid)?;
        match validator.payload(&payload).map_err(invalid)? {
            ValidPayload::Func(function, body) => survey.examine(function, &body)?,
            ValidPayload::End(types) => return Ok(survey.counted(&types)),
            ValidPayload::Ok | ValidPayload::Parser(_) => {}
        }
    }
    Err(LoadError::Invalid("it has no end".into()))
}

fn invalid(error: BinaryReaderError) -> LoadError {
    LoadError::Invalid(error.to_string())
}

/// What `engine` compiles, in the words of the parser.
fn features() -> WasmFeatures {
    let known = WasmFeatures::WASM2.difference(WasmFeatures::GC_TYPES);
    known.union(WasmFeatures::TAIL_CALL).union(WasmFeatures::EXTENDED_CONST)
}

/// What was found so far.
#[derive(Default)]
struct Survey {
    cost: u64,
    bulk: BTreeSet<Bulk>,
    allocations: FuncValidatorAllocations,
}

impl Survey {
    /// Examines a function.
    fn examine(
        &mut self,
        function: FuncToValidate<ValidatorResources>,
        body: &FunctionBody<'_>,
    ) -> Result<(), LoadError> {
        let mut validator = function.into_validator(core::mem::take(&mut self.allocations));
        let index = validator.index();
        let mut reader = body.get_binary_reader();
        validator.read_locals(&mut reader).map_err(invalid)?;
        let mut operators = wasmparser::OperatorsReader::new(reader);
        self.pay(FUNCTION_COST, index)?;
        while !operators.eof() {
            let (operator, offset) = operators.read_with_offset().map_err(invalid)?;
            if let Some(name) = refused(&operator) {
                return Err(LoadError::Instruction { name, function: index });
            }
            let alive = u64::from(validator.len_locals() + validator.operand_stack_height());
            self.pay(1 + ways(&operator) * alive, index)?;
            self.bulk.extend(Bulk::of(&operator));
            validator.op(offset, &operator).map_err(invalid)?;
        }
        operators.finish().map_err(invalid)?;
        self.allocations = validator.into_allocations();
        Ok(())
    }

    fn pay(&mut self, cost: u64, function: u32) -> Result<(), LoadError> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > COMPILE_MAX { Err(LoadError::Compile { function }) } else { Ok(()) }
    }

    fn counted(self, types: &Types) -> Option<Counted> {
        let types = types.as_ref();
        let (type_index, first) = (types.core_type_count_in_module(), types.function_count());
        let bulk: Vec<Bulk> = self.bulk.into_iter().collect();
        (!bulk.is_empty()).then_some(Counted { bulk, type_index, first })
    }
}

/// How many ways control flow may take at an operator, or 0 if it just goes on.
fn ways(operator: &Operator<'_>) -> u64 {
    match operator {
        Operator::Block { .. }
        | Operator::Loop { .. }
        | Operator::If { .. }
        | Operator::Else
        | Operator::End
        | Operator::Br { .. }
        | Operator::BrIf { .. }
        | Operator::Return
        | Operator::Call { .. }
        | Operator::CallIndirect { .. } => 1,
        Operator::BrTable { targets } => u64::from(targets.len()) + 1,
        _ => 0,
    }
}

/// The name of an operator that would do any amount of work for one instruction, and that
/// compilers do not emit unless they are asked to.
fn refused(operator: &Operator<'_>) -> Option<&'static str> {
    match operator {
        Operator::TableCopy { .. } => Some("table.copy"),
        Operator::TableFill { .. } => Some("table.fill"),
        Operator::TableInit { .. } => Some("table.init"),
        _ => None,
    }
}
