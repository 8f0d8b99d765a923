/* SPDX-License-Identifier: Apache-2.0 */
/* quern/dlpack.h from C++11, in a program that links nothing of quern: exit status 0 if a tensor survives the way out and
 * back, borrowed and owned. */
#include <cstring>
#include <vector>

#include <quern/dlpack.h>

namespace {

struct owner {
    qn_dlpack holder;
    std::vector<float> data;
    bool *gone;
};

void release(void *arg)
{
    owner *self = static_cast<owner *>(arg);
    *self->gone = true;
    delete self;
}

qn_tensor image(float *data)
{
    qn_tensor t;
    std::memset(&t, 0, sizeof t);
    t.data = data;
    t.dtype = QN_F32;
    t.rank = 3;
    t.device.kind = QN_CPU;
    t.shape[0] = 2;
    t.shape[1] = 3;
    t.shape[2] = 4;
    t.stride[0] = 20;
    t.stride[1] = 4;
    t.stride[2] = 1;
    return t;
}

bool same(const qn_tensor &a, const qn_tensor &b)
{
    return std::memcmp(&a, &b, sizeof a) == 0;
}

bool borrowed()
{
    float data[40];
    const qn_tensor t = image(data);
    qn_tensor back;
    qn_dlpack holder;
    return qn_tensor_to_dlpack(&t, nullptr, nullptr, &holder) == QN_OK &&
           holder.managed.deleter == nullptr &&
           qn_tensor_from_dlpack(&holder.managed.dl_tensor, &back) == QN_OK && same(t, back);
}

bool owned()
{
    bool gone = false;
    owner *o = new owner;
    o->data.resize(40);
    o->gone = &gone;
    const qn_tensor t = image(o->data.data());
    qn_tensor back;
    const bool good = qn_tensor_to_dlpack(&t, release, o, &o->holder) == QN_OK &&
                      qn_tensor_from_dlpack(&o->holder.managed.dl_tensor, &back) == QN_OK &&
                      same(t, back) && !gone;
    DLManagedTensor *managed = &o->holder.managed;
    managed->deleter(managed);
    return good && gone;
}

bool refused()
{
    float data[40];
    const qn_tensor t = image(data);
    qn_tensor back;
    qn_dlpack holder;
    if (qn_tensor_to_dlpack(&t, nullptr, nullptr, &holder) != QN_OK)
        return false;
    holder.managed.dl_tensor.dtype.lanes = 2;
    return qn_tensor_from_dlpack(&holder.managed.dl_tensor, &back) == QN_E_DTYPE;
}

} /* namespace */

int main()
{
    return borrowed() && owned() && refused() ? 0 : 1;
}
