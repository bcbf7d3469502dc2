//! Whole turns against scripts of models and tools: the events of session service §9.1 and §20, and
//! what holds for every script.

use super::*;
