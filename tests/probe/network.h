// The probe's verbs about the network; -1 for a verb that is none of them.
#pragma once
int probe_network(int argc, char** argv);
